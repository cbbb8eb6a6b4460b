/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * What the gate process and its XDP program share. Mirrored in src/xdp/layout.rs, whose tests read this file's numbers.
 */
#ifndef SLUICEGATE_GATE_H
#define SLUICEGATE_GATE_H

#define LOCAL_MAX 32
#define OWN_MAX 64
#define PEERS_MAX 32
#define QUEUES_MAX 16
/* A rate for each entry of `local`, then one for each of `peers`, and that of errors about the host's packets. */
#define ERRORS (LOCAL_MAX + PEERS_MAX)
#define BUCKETS (ERRORS + 1)
#define REASONS_MAX 64
/* A bit for each identifier of a ping. */
#define PINGS_WORDS 1024
/* Senders of fragments for the host share places, by port and an octet of their address; each place has so many datagrams. */
#define PLACES 64
#define PLACE_DATAGRAMS 8
/* Longest datagram in fragments. */
#define FRAGMENTED_BYTES_MAX 16384

/* Codes of wire::Reason. */
#define REASON_FRAME_TRUNCATED 0
#define REASON_NOT_FOR_SERVICE 12
#define REASON_LOCAL_RATE 31
#define REASON_HEARTBEAT_STALE 32
#define REASON_RECEIVE_FULL 33

/* An IPv6 address, or an IPv4 address mapped into IPv6, as it lies in the packet. */
struct address {
	__u64 high;
	__u64 low;
};

/* One of the host's addresses. `ports`: bit 0 outside, bit 1 inside. */
struct own {
	struct address address;
	__u32 ports; /* by which it may be reached */
	__u32 pad;
};

/* A TCP connection of the host's own: from this remote end to this port, at this rate. */
struct peer {
	struct address address;
	__u16 port;	/* host byte order */
	__u16 own_port; /* host byte order */
	__u32 pad;
	__u64 interval_ns; /* time that one packet costs */
};

struct local_rule {
	struct address address; /* zero: any of the host's */
	__u64 interval_ns;	/* time that one packet costs */
	__u8 protocol;
	__u8 ports; /* by which it may come */
	__u16 first; /* host byte order */
	__u16 last;
	__u16 pad;
};

struct config {
	__u64 heartbeat_limit_ns;
	__u64 burst_ns; /* time that may be spent ahead */
	__u32 ifindex[2];
	__u8 mac[2][8]; /* six bytes used */
	__u32 own_count;
	__u32 peer_count;
	__u32 local_count;
	__u32 pad;
	__u64 error_interval_ns;   /* time that one ICMP error costs */
	__u64 fragment_wait_ns;	   /* how long fragments may follow the first of their datagram */
	__u64 fragmented_interval_ns; /* time that one datagram in fragments costs its place */
	struct address translated; /* what the gate translates to, and these ports of it, host byte order */
	__u32 translated_first;
	__u32 translated_last; /* below the first: it translates nothing */
	struct own own[OWN_MAX];
	struct peer peers[PEERS_MAX];
	struct local_rule local[LOCAL_MAX];
};

/* A datagram for the host whose first fragment has passed. */
struct datagram {
	struct address source;
	struct address destination;
	__u64 until; /* nanoseconds of CLOCK_MONOTONIC; 0: none */
	__u32 id;
	__u32 next; /* where the next fragment has to begin */
	__u32 bucket; /* the entry of `local` that pays for it */
	__u32 pad;
};

struct place {
	__u64 spent;
	struct datagram datagrams[PLACE_DATAGRAMS];
};

#endif
