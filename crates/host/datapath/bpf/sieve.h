/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * What is refused in the place of a process that has more to do than it can: by a probability that the process sets by source,
 * and with so many bytes of answers for each neighbourhood. Kernels from 5.18 (bpf_xdp_load_bytes, bpf_loop).
 */
#ifndef SLUICEGATE_SIEVE_H
#define SLUICEGATE_SIEVE_H

#include "kernel.h"

/* Mirrored in src/xdp/udp/program.rs and src/xdp/udp/sieve.rs, whose tests read these numbers. */
#define SHARE_ROWS 2
#define SHARE_COLUMNS 4096
/* Tables of shares: of requests, and of connections. */
#define REQUESTS 0
#define CONNECTIONS 1
#define TABLES 2
#define SPARED_MAX 128
#define PREFIXES 4096
#define HEAD_WORDS 5
#define TAG_WORDS 3
#define TAIL_WORDS 5
/* Where the digit of Retry-After stands. */
#define RETRY_AFTER_AT 13

#define ETH_HEADER 14
#define IPV4_HEADER 20
#define IPV6_HEADER 40
#define UDP_HEADER 8
#define PROTOCOL_UDP 17

/* So often somebody may come between. */
#define TRIES 4

#define WORD sizeof(__u64)

#define MMAPABLE 1024

/* What the process says of the sieve. */
struct sieve {
	__u64 key[2];
	__u64 tag[2];
	__u64 bytes_per_s;
	/* Status line; end of a To line; last lines. So many bytes of them count. */
	__u64 head[HEAD_WORDS], to_tag[TAG_WORDS], tail[TAIL_WORDS];
	__u32 head_len, to_tag_len, tail_len;
	__u32 is_on;
};

enum counter { REFUSED, ACKS, OVER_BUDGET, UNREAD, RESETS, COUNTERS };

struct address {
	__u64 halves[2]; /* IPv4 mapped into IPv6 */
};

struct prefix {
	struct address address, mask;
};

/* What the process and the program tell each other. The process has it in its memory, and needs no system call for it. */
struct shared {
	/* Probability that a request or a connection passes, row after row. */
	__u32 columns[TABLES][SHARE_ROWS * SHARE_COLUMNS];
	__u64 counters[COUNTERS];
	/* Sources of which nothing is refused. */
	__u64 spared_count;
	struct prefix spared[SPARED_MAX];
};

struct {
	MAP_NUMBER(type, MAP_ARRAY);
	MAP_NUMBER(max_entries, 1);
	MAP_NUMBER(map_flags, MMAPABLE);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, struct shared);
} shared SEC(".maps");

/* By the hash of a prefix: a second of the clock, and above it in the word the bytes that went there within it. */
struct {
	MAP_NUMBER(type, MAP_ARRAY);
	MAP_NUMBER(max_entries, PREFIXES);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, __u64);
} budgets SEC(".maps");

/* Both ends of a datagram. */
struct datagram {
	struct address source, own;
	__u32 frame_len, payload_at, payload_len;
	__u16 source_port, own_port; /* as they lie in the packet */
	__u8 is_ipv4;
};

/* Of a packet, whose bytes the compiler would else read one by one. */
static ALWAYS_INLINE __u64 word_of(const __u16 *halves)
{
	return halves[0] | (__u32)halves[1] << 16 | (__u64)(halves[2] | (__u32)halves[3] << 16) << 32;
}

static ALWAYS_INLINE __u64 load(const __u8 *bytes)
{
	return *(const __u64 *)bytes;
}

/* The compiler must not conclude from what it knows what the verifier has to see. */
#define UNKNOWN(value) asm volatile("" : "+r"(value))

static ALWAYS_INLINE __u32 bounded(__u32 value, __u32 mask)
{
	UNKNOWN(value);
	value &= mask;
	UNKNOWN(value);
	return value & mask;
}

static ALWAYS_INLINE void count(__u32 which)
{
	__u32 zero = 0;
	struct shared *all = bpf_map_lookup_elem(&shared, &zero);

	if (all && which < COUNTERS)
		__sync_fetch_and_add(&all->counters[which], 1);
}

/* SipHash-2-4 of an address: of four bytes in the last word, or of two words. */
#define ROTATED(x, by) ((x) << (by) | (x) >> (64 - (by)))

struct sip_state {
	__u64 v0, v1, v2, v3;
};

static ALWAYS_INLINE void sip_round(struct sip_state *s)
{
	s->v0 += s->v1;
	s->v1 = ROTATED(s->v1, 13) ^ s->v0;
	s->v0 = ROTATED(s->v0, 32);
	s->v2 += s->v3;
	s->v3 = ROTATED(s->v3, 16) ^ s->v2;
	s->v0 += s->v3;
	s->v3 = ROTATED(s->v3, 21) ^ s->v0;
	s->v2 += s->v1;
	s->v1 = ROTATED(s->v1, 17) ^ s->v2;
	s->v2 = ROTATED(s->v2, 32);
}

static ALWAYS_INLINE void sip_word(struct sip_state *s, __u64 word)
{
	s->v3 ^= word;
	sip_round(s);
	sip_round(s);
	s->v0 ^= word;
}

/* Of the sender that an address belongs to: an IPv4 address or, of an IPv6 one, its /64. Or of a wider prefix of IPv4. */
static ALWAYS_INLINE __u64 sip_hash(const struct sieve *sieve, const struct datagram *datagram, __u32 ipv4_mask)
{
	struct sip_state s = {
		.v0 = sieve->key[0] ^ 0x736f6d6570736575ULL,
		.v1 = sieve->key[1] ^ 0x646f72616e646f6dULL,
		.v2 = sieve->key[0] ^ 0x6c7967656e657261ULL,
		.v3 = sieve->key[1] ^ 0x7465646279746573ULL,
	};
	int i;

	if (datagram->is_ipv4) {
		__u64 octets = (datagram->source.halves[1] >> 32) & ipv4_mask;

		sip_word(&s, 4ULL << 56 | octets);
	} else {
		sip_word(&s, datagram->source.halves[0]);
		sip_word(&s, 0);
		sip_word(&s, 16ULL << 56);
	}
	s.v2 ^= 0xff;
	for (i = 0; i < 4; i++)
		sip_round(&s);
	return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

static ALWAYS_INLINE int passes(const struct sieve *sieve, const struct datagram *datagram, __u32 table)
{
	__u64 hash = sip_hash(sieve, datagram, ~0U);
	__u32 zero = 0, share, other, i;
	const struct shared *all = bpf_map_lookup_elem(&shared, &zero);

	if (!all)
		return 1;
	share = all->columns[table][hash % SHARE_COLUMNS];
	other = all->columns[table][SHARE_COLUMNS + (hash >> 16) % SHARE_COLUMNS];
	if (other > share)
		share = other;
	if (share == ~0U || bpf_get_prandom_u32() < share)
		return 1;
	for (i = 0; i < SPARED_MAX && i < all->spared_count; i++) {
		const struct prefix *spared = &all->spared[i];

		if ((datagram->source.halves[0] & spared->mask.halves[0]) == spared->address.halves[0] &&
		    (datagram->source.halves[1] & spared->mask.halves[1]) == spared->address.halves[1])
			return 1;
	}
	return 0;
}

/* Whether so much may still go to the sender's neighbourhood in this second of the clock, which never goes back there. */
static ALWAYS_INLINE int is_within_budget(const struct sieve *sieve, const struct datagram *datagram, __u32 bytes)
{
	__u32 cell = sip_hash(sieve, datagram, 0x00ffffff) % PREFIXES;
	__u64 *budget = bpf_map_lookup_elem(&budgets, &cell);
	__u32 now = bpf_ktime_get_coarse_ns() / 1000000000, i;

	if (!budget)
		return 0;
#pragma unroll
	for (i = 0; i < TRIES; i++) {
		__u64 had = *(volatile __u64 *)budget, second = had & 0xffffffff, spent = had >> 32;

		if ((__s64)(now - second) > 0) {
			second = now;
			spent = 0;
		}
		spent += bytes;
		if (spent > sieve->bytes_per_s || spent >> 32)
			return 0;
		if (__sync_val_compare_and_swap(budget, had, spent << 32 | second) == had)
			return 1;
	}
	return 0;
}

#endif
