/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Turns an INVITE or REGISTER without credentials into its refusal, where it lies, and drops what acknowledges one.
 */
#ifndef SLUICEGATE_REFUSE_H
#define SLUICEGATE_REFUSE_H

#include "text.h"

/* bpf_csum_diff takes no more at once. */
#define PIECE 512

static ALWAYS_INLINE __u16 folded(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* The sum of both ends and of so many bytes of the answer. */
static ALWAYS_INLINE __u16 udp_checksum(struct scratch *s, const struct datagram *datagram, __u32 len)
{
	const __u32 mapped = datagram->is_ipv4 ? 0xffff0000 : 0;
	const __u64 *halves = datagram->source.halves, *own = datagram->own.halves;
	__u64 sum = 0;
	__u32 i, seed;
	__u16 checksum;

	for (i = 0; i < 2; i++)
		sum += (halves[i] & 0xffffffff) + (halves[i] >> 32) + (own[i] & 0xffffffff) + (own[i] >> 32);
	sum -= 2ULL * mapped;
	sum += htons(PROTOCOL_UDP) + 2ULL * htons(UDP_HEADER + len);
	sum += (__u64)datagram->source_port + datagram->own_port;
	sum = (sum & 0xffffffff) + (sum >> 32);
	seed = (sum & 0xffffffff) + (sum >> 32);
	*(__u64 *)(s->out + bounded(len, TEXT_MAX - 1)) = 0;
#pragma unroll
	for (i = 0; i < TEXT_MAX / PIECE; i++) {
		__u32 left = (len + 3) & ~3U;

		if (left <= i * PIECE)
			break;
		left -= i * PIECE;
		if (left > PIECE)
			left = PIECE;
		UNKNOWN(left);
		if (left > PIECE)
			break;
		seed = bpf_csum_diff(0, 0, (__u32 *)(s->out + i * PIECE), left, seed);
	}
	checksum = folded(seed);
	return checksum ? checksum : 0xffff;
}

static ALWAYS_INLINE void swap(__u16 *a, __u16 *b, __u32 halves)
{
	__u32 i;

#pragma unroll
	for (i = 0; i < halves; i++) {
		__u16 kept = a[i];

		a[i] = b[i];
		b[i] = kept;
	}
}

/*
 * Turns a packet of so many bytes behind its IP header around: addresses, lengths and ports, and the checksum of IPv4. Where
 * what it carries begins; nothing if it is too short for that.
 */
static ALWAYS_INLINE __u16 *turned(const struct xdp_md *ctx, int is_ipv4, __u32 protocol, __u32 len, __u32 least)
{
	__u8 *frame = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u16 *ip = (__u16 *)(frame + ETH_HEADER), *carried;
	__u64 sum = 0;
	__u32 i;

	if (frame + ETH_HEADER + IPV4_HEADER + least > end)
		return 0;
	if (is_ipv4) {
		ip[0] = htons(0x4500);
		ip[1] = htons(IPV4_HEADER + len);
		ip[2] = 0;
		ip[3] = htons(0x4000);
		ip[4] = htons(64 << 8 | protocol);
		ip[5] = 0;
		swap(ip + 6, ip + 8, 2);
#pragma unroll
		for (i = 0; i < IPV4_HEADER / 2; i++)
			sum += ip[i];
		ip[5] = folded(sum);
		carried = ip + IPV4_HEADER / 2;
	} else {
		if (frame + ETH_HEADER + IPV6_HEADER + least > end)
			return 0;
		ip[0] = htons(0x6000);
		ip[1] = 0;
		ip[2] = htons(len);
		ip[3] = htons(protocol << 8 | 64);
		swap(ip + 4, ip + 12, 8);
		carried = ip + IPV6_HEADER / 2;
	}
	swap((__u16 *)frame, (__u16 *)(frame + 6), 3);
	swap(carried, carried + 1, 1);
	return carried;
}

/* Turns the frame into the answer's. */
static ALWAYS_INLINE int answer(struct walk *walk, const struct datagram *datagram)
{
	struct scratch *s = walk->s;
	__u32 len = s->out_len;
	__u16 checksum = udp_checksum(s, datagram, len), *udp;

	UNKNOWN(len);
	if (!len || len >= TEXT_MAX || bpf_xdp_store_bytes(walk->ctx, datagram->payload_at, s->out, len))
		return XDP_ABORTED;
	if (bpf_xdp_adjust_tail(walk->ctx, (int)(datagram->payload_at + len) - (int)datagram->frame_len))
		return XDP_ABORTED;
	udp = turned(walk->ctx, datagram->is_ipv4, PROTOCOL_UDP, UDP_HEADER + len, UDP_HEADER);
	if (!udp)
		return XDP_ABORTED;
	udp[2] = htons(UDP_HEADER + len);
	udp[3] = checksum;
	return XDP_TX;
}

/* Reads a datagram that is ours; whether its lengths agree and another host may have sent it and can be answered. */
static ALWAYS_INLINE int is_sound(const __u8 *frame, const __u8 *end, struct datagram *datagram)
{
	const __u16 *ip = (const __u16 *)(frame + ETH_HEADER), *udp;
	__u32 ip_header, ip_len, udp_len;

	datagram->is_ipv4 = frame[12] == 0x08;
	if (datagram->is_ipv4) {
		const __u8 *octets = (const __u8 *)(ip + 6);

		ip_header = IPV4_HEADER;
		ip_len = ntohs(ip[1]);
		datagram->source.halves[0] = datagram->own.halves[0] = 0;
		datagram->source.halves[1] = (__u64)(ip[6] | (__u32)ip[7] << 16) << 32 | 0xffff0000;
		datagram->own.halves[1] = (__u64)(ip[8] | (__u32)ip[9] << 16) << 32 | 0xffff0000;
		/* RFC 1122 section 3.2.1.3. */
		if (octets[0] == 0 || octets[0] == 127 || octets[0] >= 224)
			return 0;
		udp = ip + IPV4_HEADER / 2;
	} else {
		__u32 i;

		if (frame + ETH_HEADER + IPV6_HEADER + UDP_HEADER > end)
			return 0;
		ip_header = IPV6_HEADER;
		ip_len = IPV6_HEADER + ntohs(ip[2]);
#pragma unroll
		for (i = 0; i < 2; i++) {
			datagram->source.halves[i] = word_of(ip + 4 + 4 * i);
			datagram->own.halves[i] = word_of(ip + 12 + 4 * i);
		}
		/* Unspecified, loopback, IPv4-mapped; multicast. */
		if (!datagram->source.halves[0] || (datagram->source.halves[0] & 0xff) == 0xff)
			return 0;
		udp = ip + IPV6_HEADER / 2;
	}
	datagram->frame_len = end - frame;
	datagram->source_port = udp[0];
	datagram->own_port = udp[1];
	udp_len = ntohs(udp[2]);
	datagram->payload_at = ETH_HEADER + ip_header + UDP_HEADER;
	datagram->payload_len = udp_len - UDP_HEADER;
	return udp_len > UDP_HEADER && ip_len == ip_header + udp_len && ETH_HEADER + ip_len <= datagram->frame_len &&
	       datagram->source_port && !(frame[6] & 1) &&
	       (datagram->source.halves[0] != datagram->own.halves[0] ||
		datagram->source.halves[1] != datagram->own.halves[1]);
}

/* What becomes of a datagram that is ours: dropped, answered, or passed for somebody else to judge. */
static ALWAYS_INLINE int sift(struct xdp_md *ctx, const struct sieve *sieve)
{
	const __u8 *frame = (const void *)(long)ctx->data, *end = (const void *)(long)ctx->data_end, *text;
	struct walk walk = { .ctx = ctx, .sieve = sieve };
	struct datagram datagram = {};
	__u32 zero = 0;
	int is_ack;

	if (frame + ETH_HEADER + IPV4_HEADER + UDP_HEADER > end || !is_sound(frame, end, &datagram))
		return XDP_PASS;
	text = frame + ETH_HEADER + UDP_HEADER + (datagram.is_ipv4 ? IPV4_HEADER : IPV6_HEADER);
	if (text + 9 > end)
		return XDP_PASS;
	is_ack = text[0] == 'A' && text[1] == 'C' && text[2] == 'K' && text[3] == ' ';
	if (!is_ack) {
		const __u64 word = word_of((const __u16 *)text);
		const int is_invite = (word & ~0ULL >> 8) == text_word("INVITE ", 7);
		const int is_register = word == text_word("REGISTER", WORD) && text[8] == ' ';

		if ((!is_invite && !is_register) || passes(sieve, &datagram, REQUESTS))
			return XDP_PASS;
	}
	walk.payload_at = datagram.payload_at;
	walk.s = bpf_map_lookup_elem(&scratches, &zero);
	if (!walk.s)
		return XDP_PASS;
	if (!is_read(&walk, &datagram) || (!is_ack && !is_written(&walk, &datagram))) {
		count(UNREAD);
		return XDP_PASS;
	}
	if (is_ack) {
		if (!walk.s->has_our_tag)
			return XDP_PASS;
		count(ACKS);
		return XDP_DROP;
	}
	if (!is_within_budget(sieve, &datagram, walk.s->out_len)) {
		count(OVER_BUDGET);
		return XDP_DROP;
	}
	count(REFUSED);
	return answer(&walk, &datagram);
}

#endif
