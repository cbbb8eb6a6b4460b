/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Refuses connections in the place of a process that has more to do than it can: a SYN is answered with a reset, as where
 * nobody listens, by a probability that the process sets by source. Whoever connects knows at once, and neither the process
 * nor the kernel has spent anything.
 */
#ifndef SLUICEGATE_RESET_H
#define SLUICEGATE_RESET_H

#include "refuse.h"

#define TCP_HEADER 20
#define PROTOCOL_TCP 6
#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

/* Whether a SYN asks for a connection that another host may have; its ends. */
static ALWAYS_INLINE int is_syn(const __u8 *frame, const __u8 *end, struct datagram *ends)
{
	const __u16 *ip = (const __u16 *)(frame + ETH_HEADER), *tcp;
	__u32 i;

	if (frame + ETH_HEADER + IPV4_HEADER + TCP_HEADER > end)
		return 0;
	if (ip[-1] == htons(0x0800)) {
		const __u8 *octets = (const __u8 *)(ip + 6);

		/* No options, and no fragment. */
		if (frame[ETH_HEADER] != 0x45 || frame[ETH_HEADER + 9] != PROTOCOL_TCP || ip[3] & htons(0x3fff))
			return 0;
		if (octets[0] == 0 || octets[0] == 127 || octets[0] >= 224)
			return 0;
		ends->is_ipv4 = 1;
		ends->source.halves[0] = ends->own.halves[0] = 0;
		ends->source.halves[1] = (__u64)(ip[6] | (__u32)ip[7] << 16) << 32 | 0xffff0000;
		ends->own.halves[1] = (__u64)(ip[8] | (__u32)ip[9] << 16) << 32 | 0xffff0000;
		tcp = ip + IPV4_HEADER / 2;
	} else if (ip[-1] == htons(0x86dd)) {
		if (frame + ETH_HEADER + IPV6_HEADER + TCP_HEADER > end || frame[ETH_HEADER] >> 4 != 6 ||
		    frame[ETH_HEADER + 6] != PROTOCOL_TCP)
			return 0;
		/* A link-local sender is of this wire, and the process's to judge. */
		if (frame[ETH_HEADER + 8] == 0xff || (frame[ETH_HEADER + 8] == 0xfe && (frame[ETH_HEADER + 9] & 0xc0) == 0x80))
			return 0;
		ends->is_ipv4 = 0;
#pragma unroll
		for (i = 0; i < 2; i++) {
			ends->source.halves[i] = word_of(ip + 4 + 4 * i);
			ends->own.halves[i] = word_of(ip + 12 + 4 * i);
		}
		if (!ends->source.halves[0])
			return 0;
		tcp = ip + IPV6_HEADER / 2;
	} else {
		return 0;
	}
	ends->source_port = tcp[0];
	ends->own_port = tcp[1];
	return (((const __u8 *)tcp)[13] & (TCP_FIN | TCP_SYN | TCP_RST | TCP_ACK)) == TCP_SYN && tcp[0] &&
	       !(frame[6] & 1) &&
	       (ends->source.halves[0] != ends->own.halves[0] || ends->source.halves[1] != ends->own.halves[1]);
}

/* Turns a SYN into the reset that answers it (RFC 9293 section 3.10.7.1). */
static ALWAYS_INLINE int reset(struct xdp_md *ctx, const struct datagram *ends)
{
	const __u32 header = ends->is_ipv4 ? IPV4_HEADER : IPV6_HEADER, mapped = ends->is_ipv4 ? 0xffff0000 : 0;
	const int frame_len = (int)(ctx->data_end - ctx->data);
	__u64 sum = 0;
	__u32 i, next;
	__u16 *tcp;

	if (bpf_xdp_adjust_tail(ctx, (int)(ETH_HEADER + header + TCP_HEADER) - frame_len))
		return XDP_ABORTED;
	tcp = turned(ctx, ends->is_ipv4, PROTOCOL_TCP, TCP_HEADER, TCP_HEADER);
	if (!tcp)
		return XDP_ABORTED;
	next = ntohl(tcp[2] | (__u32)tcp[3] << 16) + 1;
	tcp[4] = htons(next >> 16);
	tcp[5] = htons(next & 0xffff);
	tcp[2] = tcp[3] = 0;
	tcp[6] = htons(TCP_HEADER / 4 << 12 | TCP_RST | TCP_ACK);
	tcp[7] = tcp[8] = tcp[9] = 0;
#pragma unroll
	for (i = 0; i < TCP_HEADER / 2; i++)
		sum += tcp[i];
	for (i = 0; i < 2; i++)
		sum += (ends->source.halves[i] & 0xffffffff) + (ends->source.halves[i] >> 32) +
		       (ends->own.halves[i] & 0xffffffff) + (ends->own.halves[i] >> 32);
	sum -= 2ULL * mapped;
	sum += htons(PROTOCOL_TCP) + htons(TCP_HEADER);
	tcp[8] = folded(sum);
	return XDP_TX;
}

/* What becomes of a SYN for an address where somebody listens. */
static ALWAYS_INLINE int sift_syn(struct xdp_md *ctx, const struct sieve *sieve, const struct datagram *ends)
{
	if (passes(sieve, ends, CONNECTIONS))
		return XDP_PASS;
	if (!is_within_budget(sieve, ends, IPV4_HEADER + TCP_HEADER)) {
		count(OVER_BUDGET);
		return XDP_DROP;
	}
	count(RESETS);
	return reset(ctx, ends);
}

#endif
