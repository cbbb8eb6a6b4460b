// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * The XDP program of a frontend: whole datagrams for one of its addresses go to the AF_XDP socket of their queue, and
 * everything else to the kernel, where the frontend's sockets are: fragments, tagged frames, options, other hosts' frames,
 * and datagrams of a queue without a socket. Of what is left to others it looks at nothing that it does not have to: they
 * check lengths, checksums and addresses. What the process has no time for it refuses itself (refuse.h, reset.h).
 */
#include "kernel.h"
#include "refuse.h"
#include "reset.h"

/* Mirrored in src/xdp/udp/program.rs, whose tests read these numbers. */
#define LISTENERS_MAX 8
#define QUEUES_MAX 64

struct listener {
	__u8 address[16]; /* IPv4 mapped into IPv6 */
	__u16 port;	  /* as it lies in the packet */
	__u16 pad[3];
};

struct config {
	__u8 mac[8]; /* six bytes used */
	__u32 frame_bytes_max;
	__u32 count;
	struct listener listeners[LISTENERS_MAX];
	/* Where connections are taken. */
	struct listener streams[LISTENERS_MAX];
	__u32 streams_count;
	__u32 takes_frames;
	struct sieve sieve;
};

struct {
	MAP_NUMBER(type, MAP_ARRAY);
	MAP_NUMBER(max_entries, 1);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, struct config);
} config SEC(".maps");

/* AF_XDP sockets by queue. */
struct {
	MAP_NUMBER(type, MAP_XSK);
	MAP_NUMBER(max_entries, QUEUES_MAX);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, __u32);
} sockets SEC(".maps");

static ALWAYS_INLINE __u32 word_at(const __u8 *bytes)
{
	__u32 word;

	__builtin_memcpy(&word, bytes, sizeof(word));
	return word;
}

static ALWAYS_INLINE __u16 half_at(const __u8 *bytes)
{
	__u16 half;

	__builtin_memcpy(&half, bytes, sizeof(half));
	return half;
}

static ALWAYS_INLINE int is_mapped(const __u8 *address)
{
	return !word_at(address) && !word_at(address + 4) && word_at(address + 8) == htonl(0xffff);
}

static ALWAYS_INLINE int is_same(const __u8 *a, const __u8 *b)
{
	return word_at(a) == word_at(b) && word_at(a + 4) == word_at(b + 4) && word_at(a + 8) == word_at(b + 8) &&
	       word_at(a + 12) == word_at(b + 12);
}

static ALWAYS_INLINE int is_listener(const struct listener *listener, int is_ipv4, const __u8 *address, __u16 port)
{
	if (listener->port != port)
		return 0;
	if (is_ipv4)
		return is_mapped(listener->address) && word_at(listener->address + 12) == word_at(address);
	return is_same(listener->address, address);
}

/* Whether a SYN is for one of the addresses; its ends. */
static ALWAYS_INLINE int is_syn_of_ours(const struct config *config, const __u8 *frame, const __u8 *end,
					struct datagram *ends)
{
	const __u8 *address;
	__u32 i;

	if (!config->streams_count || !is_syn(frame, end, ends))
		return 0;
	if (word_at(frame) != word_at(config->mac) || half_at(frame + 4) != half_at(config->mac + 4))
		return 0;
	address = (const __u8 *)ends->own.halves;
	address = ends->is_ipv4 ? address + 12 : address;
	for (i = 0; i < LISTENERS_MAX && i < config->streams_count; i++)
		if (is_listener(&config->streams[i], ends->is_ipv4, address, ends->own_port))
			return 1;
	return 0;
}

/* Whether it is a whole datagram for one of the addresses. */
static ALWAYS_INLINE int is_ours(const struct config *config, const __u8 *frame, const __u8 *end)
{
	const __u8 *ip = frame + ETH_HEADER, *address, *udp;
	__u16 ethertype;
	__u32 i;
	int is_ipv4;

	if (ip + IPV4_HEADER + UDP_HEADER > end || (__u32)(end - frame) > config->frame_bytes_max)
		return 0;
	if (word_at(frame) != word_at(config->mac) || half_at(frame + 4) != half_at(config->mac + 4))
		return 0;
	ethertype = half_at(frame + 12);
	is_ipv4 = ethertype == htons(0x0800);
	if (is_ipv4) {
		/* No options, and no fragment. */
		if (ip[0] != 0x45 || ip[9] != PROTOCOL_UDP || half_at(ip + 6) & htons(0x3fff))
			return 0;
		address = ip + 16;
		udp = ip + IPV4_HEADER;
	} else if (ethertype == htons(0x86dd)) {
		if (ip + IPV6_HEADER + UDP_HEADER > end || ip[0] >> 4 != 6 || ip[6] != PROTOCOL_UDP)
			return 0;
		/* A link-local sender cannot be answered without the interface, which the kernel tells. */
		if (ip[8] == 0xfe && (ip[9] & 0xc0) == 0x80)
			return 0;
		address = ip + 24;
		udp = ip + IPV6_HEADER;
	} else {
		return 0;
	}
	for (i = 0; i < LISTENERS_MAX && i < config->count; i++) {
		if (is_listener(&config->listeners[i], is_ipv4, address, half_at(udp + 2)))
			return 1;
	}
	return 0;
}

SEC("xdp")
int sip(struct xdp_md *ctx)
{
	const __u8 *frame = (const void *)(long)ctx->data;
	const __u8 *end = (const void *)(long)ctx->data_end;
	struct datagram ends = {};
	__u32 zero = 0;
	const struct config *configured = bpf_map_lookup_elem(&config, &zero);
	__u64 *came;

	if (!configured)
		return XDP_PASS;
	if (configured->sieve.is_on && is_syn_of_ours(configured, frame, end, &ends))
		return sift_syn(ctx, &configured->sieve, &ends);
	if (!is_ours(configured, frame, end))
		return XDP_PASS;
	if (configured->sieve.is_on) {
		const int action = sift(ctx, &configured->sieve);

		if (action != XDP_PASS)
			return action;
	}
	if (!configured->takes_frames)
		return XDP_PASS;
	/* When it came, in front of the frame, if the driver has room there. */
	if (!bpf_xdp_adjust_meta(ctx, -(int)sizeof(*came))) {
		came = (void *)(long)ctx->data_meta;
		if ((const void *)(came + 1) <= (const void *)(long)ctx->data)
			*came = bpf_ktime_get_ns();
	}
	return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
}

char _license[] SEC("license") = "Dual BSD/GPL";
