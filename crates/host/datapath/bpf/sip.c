// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * The XDP program of a frontend: whole datagrams for one of its addresses go to the AF_XDP socket of their queue, and
 * everything else to the kernel, where the frontend's sockets are: fragments, tagged frames, options, other hosts' frames,
 * and datagrams of a queue without a socket. It drops nothing, and looks at nothing that it does not have to: the process
 * checks lengths, checksums and addresses.
 */
#include "kernel.h"

/* Mirrored in src/xdp/udp/program.rs, whose tests read these numbers. */
#define LISTENERS_MAX 8
#define QUEUES_MAX 64

#define ETH_HEADER 14
#define IPV4_HEADER 20
#define IPV6_HEADER 40
#define UDP_HEADER 8
#define PROTOCOL_UDP 17

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
		const struct listener *listener = &config->listeners[i];

		if (listener->port != half_at(udp + 2))
			continue;
		if (is_ipv4 ? is_mapped(listener->address) && word_at(listener->address + 12) == word_at(address) :
			      is_same(listener->address, address))
			return 1;
	}
	return 0;
}

SEC("xdp")
int sip(struct xdp_md *ctx)
{
	const __u8 *frame = (const void *)(long)ctx->data;
	const __u8 *end = (const void *)(long)ctx->data_end;
	__u32 zero = 0;
	const struct config *configured = bpf_map_lookup_elem(&config, &zero);
	__u64 *came;

	if (!configured || !is_ours(configured, frame, end))
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
