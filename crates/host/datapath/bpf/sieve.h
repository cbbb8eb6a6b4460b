/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Refuses SIP requests in the place of a process that has more to do than it can: INVITE and REGISTER without credentials,
 * by a probability that the process sets by source. What is not understood whole is the process's to judge: text is read
 * only to be refused. Kernels from 5.18 (bpf_xdp_load_bytes, bpf_loop).
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
#define SPARED_MAX 64
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

#define TEXT_MAX 2048
/* Header lines, the request line with them. */
#define LINES_MAX 64
/* Longest line that is copied. */
#define LINE_BYTES_MAX 1024
/* bpf_csum_diff takes no more at once. */
#define PIECE 512
/* So often somebody may come between. */
#define TRIES 4

#define WORD sizeof(__u64)
/* Words looked at in one turn of a loop. */
#define STRIDE 4

#define NO_PREALLOC 1
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

/* Probability that a request or a connection passes, row after row. The process writes into it as memory. */
struct shares {
	__u32 columns[TABLES][SHARE_ROWS * SHARE_COLUMNS];
};

struct {
	MAP_NUMBER(type, MAP_ARRAY);
	MAP_NUMBER(max_entries, 1);
	MAP_NUMBER(map_flags, MMAPABLE);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, struct shares);
} shares SEC(".maps");

struct address {
	__u64 halves[2]; /* IPv4 mapped into IPv6 */
};

struct prefix {
	__u32 len; /* in bits */
	__u8 address[16];
};

/* Sources of which nothing is refused. */
struct {
	MAP_NUMBER(type, MAP_LPM_TRIE);
	MAP_NUMBER(max_entries, SPARED_MAX);
	MAP_NUMBER(map_flags, NO_PREALLOC);
	MAP_TYPE(key, struct prefix);
	MAP_TYPE(value, __u8);
} spared SEC(".maps");

/* By the hash of a prefix: a second of the clock, and above it in the word the bytes that went there within it. */
struct {
	MAP_NUMBER(type, MAP_ARRAY);
	MAP_NUMBER(max_entries, PREFIXES);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, __u64);
} budgets SEC(".maps");

struct {
	MAP_NUMBER(type, MAP_PERCPU_ARRAY);
	MAP_NUMBER(max_entries, COUNTERS);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, __u64);
} counters SEC(".maps");

enum kind { OTHER, VIA, FROM, TO, CALL_ID, CSEQ, KINDS };

/*
 * A request, what is known of it, and the answer. Numbers are kept here rather than on the stack: the verifier then knows
 * nothing of them, and has one state where it had one for each value.
 */
struct scratch {
	__u8 in[TEXT_MAX + 64];
	__u8 out[TEXT_MAX + LINE_BYTES_MAX];
	/* Where lines begin, and behind the last where the empty line does. */
	__u16 starts[LINES_MAX + 1];
	__u16 pad;
	/* By kind: number of its first line, and how many there are. */
	__u32 first[KINDS], count[KINDS];
	__u32 len, lines, out_len;
	__u32 cursor, end, rport_at;
	__u8 is_ended, is_odd, has_tag, has_our_tag;
	__u64 carry, vias;
};

struct {
	MAP_NUMBER(type, MAP_PERCPU_ARRAY);
	MAP_NUMBER(max_entries, 1);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, struct scratch);
} scratches SEC(".maps");

/* What a step of a loop has at hand. */
struct walk {
	struct xdp_md *ctx;
	struct scratch *s;
	const struct sieve *sieve;
	__u32 payload_at;
};

/* Both ends of a datagram. */
struct datagram {
	struct address source, own;
	__u32 frame_len, payload_at, payload_len;
	__u16 source_port, own_port; /* as they lie in the packet */
	__u8 is_ipv4;
};

#define ONES 0x0101010101010101ULL
#define LOWER (0x20 * ONES)
#define HIGH (0x80 * ONES)

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
	__u64 *counted = bpf_map_lookup_elem(&counters, &which);

	if (counted)
		*counted += 1;
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
	__u32 zero = 0, share, other;
	struct prefix whole = { .len = 128 };
	const struct shares *all = bpf_map_lookup_elem(&shares, &zero);

	if (!all)
		return 1;
	share = all->columns[table][hash % SHARE_COLUMNS];
	other = all->columns[table][SHARE_COLUMNS + (hash >> 16) % SHARE_COLUMNS];
	if (other > share)
		share = other;
	if (share == ~0U || bpf_get_prandom_u32() < share)
		return 1;
	__builtin_memcpy(whole.address, datagram->source.halves, sizeof(whole.address));
	return !!bpf_map_lookup_elem(&spared, &whole);
}

/* Whether so much may still go to the sender's neighbourhood in this second of the clock, which never goes back there. */
static ALWAYS_INLINE int is_within_budget(const struct sieve *sieve, const struct datagram *datagram, __u32 bytes)
{
	__u32 cell = sip_hash(sieve, datagram, 0x00ffffff) % PREFIXES;
	__u64 *budget = bpf_map_lookup_elem(&budgets, &cell);
	__u32 now = bpf_ktime_get_ns() / 1000000000, i;

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

/* Bytes that equal one, as the highest bits of theirs. */
static ALWAYS_INLINE __u64 equal(__u64 word, __u8 byte)
{
	word ^= byte * ONES;
	return ~(((word & ~HIGH) + ~HIGH) | word | ~HIGH);
}

/* Control characters, likewise. */
static ALWAYS_INLINE __u64 controls(__u64 word)
{
	return ~(((word & ~HIGH) + 0x60 * ONES) | word | ~HIGH);
}

/* The number of the byte with the lowest of such bits. */
static ALWAYS_INLINE __u32 lowest(__u64 marks)
{
	return ((((marks & -marks) - 1) & ONES) * ONES >> 56) - 1;
}

/* Notes where lines end. Only CR LF ends one, and no other control character is among them. */
static long find_lines(__u32 index, struct walk *walk)
{
	struct scratch *s = walk->s;
	__u32 i, j;

	if (index >= TEXT_MAX / WORD / STRIDE)
		return 1;
#pragma unroll
	for (i = 0; i < STRIDE; i++) {
		__u32 at = (index * STRIDE + i) * WORD;
		__u64 word = load(s->in + bounded(at, TEXT_MAX - 1)), odd, cr, lf;

		if (at >= s->len)
			return 1;
		odd = controls(word);
		if (!odd && !s->carry)
			continue;
		cr = equal(word, '\r');
		lf = equal(word, '\n');
		if (lf != (cr << 8 | s->carry) || odd != (cr | lf)) {
			s->is_odd = 1;
			return 1;
		}
		s->carry = cr >> 56;
		/* No two of them are neighbours. */
		for (j = 0; j < WORD / 2 && lf; j++) {
			__u32 next = at + lowest(lf) + 1, line = bounded(s->lines, LINES_MAX - 1);

			lf &= lf - 1;
			if (next > s->len || line == LINES_MAX - 1) {
				s->is_odd = 1;
				return 1;
			}
			if (next == s->starts[line] + 2U) {
				s->is_ended = 1;
				return 1;
			}
			s->lines = line + 1;
			s->starts[bounded(line + 1, LINES_MAX - 1)] = next;
		}
	}
	return 0;
}

/* Whether a line, in lower case, has this name. A space in front of the colon makes it odd. */
#define IS_NAMED(s, lower, name)                                                                                       \
	({                                                                                                             \
		const __u64 after = ((lower) >> (8 * (sizeof(name) - 1))) & 0xff;                                      \
		const __u64 mask = ~0ULL >> (64 - 8 * (sizeof(name) - 1));                                             \
		const int same = ((lower) & mask) == text_word(name, sizeof(name) - 1);                                \
		if (same && after == ' ')                                                                              \
			(s)->is_odd = 1;                                                                               \
		same &&after == ':';                                                                                   \
	})

static ALWAYS_INLINE __u64 text_word(const char *text, __u32 len)
{
	__u64 word = 0;
	__u32 i;

#pragma unroll
	for (i = 0; i < WORD; i++)
		if (i < len)
			word |= (__u64)(__u8)text[i] << (8 * i);
	return word;
}

/* Says what a line is. */
static long name_line(__u32 index, struct walk *walk)
{
	struct scratch *s = walk->s;
	__u32 line = index + 1, kind = OTHER;
	__u64 lower;

	if (line >= LINES_MAX || line >= s->lines)
		return 1;
	/* ':' and '-' are what they were: no control characters are here. */
	lower = load(s->in + bounded(s->starts[line], TEXT_MAX - 1)) | LOWER;
	switch (lower & 0xff) {
	case ' ':
		s->is_odd = 1;
		break;
	case 'v':
		if (IS_NAMED(s, lower, "via") || IS_NAMED(s, lower, "v"))
			kind = VIA;
		break;
	case 'f':
		if (IS_NAMED(s, lower, "from") || IS_NAMED(s, lower, "f"))
			kind = FROM;
		break;
	case 't':
		if (IS_NAMED(s, lower, "to") || IS_NAMED(s, lower, "t"))
			kind = TO;
		break;
	case 'i':
		if (IS_NAMED(s, lower, "i"))
			kind = CALL_ID;
		break;
	case 'c':
		if (IS_NAMED(s, lower, "call-id"))
			kind = CALL_ID;
		else if (IS_NAMED(s, lower, "cseq"))
			kind = CSEQ;
		break;
	case 'a':
		if (lower == text_word("authoriz", WORD))
			s->is_odd = 1;
		break;
	case 'p':
		if (lower == text_word("proxy-au", WORD))
			s->is_odd = 1;
		break;
	}
	if (s->is_odd)
		return 1;
	if (kind == OTHER)
		return 0;
	if (!s->count[kind])
		s->first[kind] = line;
	s->count[kind]++;
	if (kind == VIA)
		s->vias |= 1ULL << line;
	return 0;
}

static ALWAYS_INLINE void go_to(struct scratch *s, __u32 kind)
{
	__u32 line = bounded(s->first[kind], LINES_MAX - 1);

	s->cursor = s->starts[line];
	s->end = s->starts[line + 1] - 2;
}

/* The next of these bytes in a line from the cursor on, which then is behind it; beyond the line's end if there is none. */
#define NEXT_OF(s, marks_of)                                                                                           \
	({                                                                                                             \
		__u32 from = bounded((s)->cursor, TEXT_MAX - 1);                                                       \
		__u64 word = load((s)->in + from), marks = (marks_of);                                                 \
		__u32 at = marks ? from + lowest(marks) : TEXT_MAX;                                                    \
		(s)->cursor = marks ? at + 1 : from + WORD;                                                            \
		at;                                                                                                    \
	})

/* Looks for a tag in To: also where none can be, such as in a display name. */
static long find_tag(__u32 index, struct walk *walk)
{
	struct scratch *s = walk->s;
	__u32 at, after;
	__u64 lower;
	__u8 next;

	(void)index;
	if (s->cursor >= s->end)
		return 1;
	at = NEXT_OF(s, equal(word, ';') | equal(word, ' '));
	if (at >= s->end)
		return 0;
	at = bounded(at + 1, TEXT_MAX - 1);
	lower = load(s->in + at) | LOWER;
	if ((lower & 0xffffff) != text_word("tag", 3))
		return 0;
	next = s->in[at + 3];
	if (next != '=' && next != ' ' && next != ';' && next != '\r')
		return 0;
	s->has_tag = 1;
	after = s->in[at + 20];
	if (next == '=' && load(s->in + at + 4) == walk->sieve->tag[0] && load(s->in + at + 12) == walk->sieve->tag[1] &&
	    (after == '\r' || after == ';'))
		s->has_our_tag = 1;
	return 0;
}

/* Looks for an rport without a value (RFC 3581) in the topmost Via. */
static long find_rport(__u32 index, struct walk *walk)
{
	struct scratch *s = walk->s;
	__u64 lower;
	__u32 at;
	__u8 mark, next;

	(void)index;
	if (s->cursor >= s->end)
		return 1;
	at = NEXT_OF(s, equal(word, ';') | equal(word, ',') | equal(word, '"'));
	if (at >= s->end)
		return 0;
	at = bounded(at, TEXT_MAX - 1);
	mark = s->in[at];
	if (mark == ',')
		return 1;
	lower = load(s->in + at + 1) | LOWER;
	/* A name may follow after spaces, and what the sender claims to have been received is not copied. */
	if (mark == '"' || (lower & 0xff) == ' ' || lower == text_word("received", WORD))
		goto odd;
	if ((lower & 0xffffffffff) != text_word("rport", 5))
		return 0;
	next = s->in[at + 6];
	if (s->rport_at || (next != ';' && next != ',' && next != '\r'))
		goto odd;
	s->rport_at = at + 6;
	return 0;
odd:
	s->is_odd = 1;
	return 1;
}

/* Copies from the request into the answer. */
static ALWAYS_INLINE void copy(const struct walk *walk, __u32 from, __u32 to)
{
	struct scratch *s = walk->s;
	__u32 at = s->out_len, len = to - from;

	UNKNOWN(len);
	if (!len)
		return;
	UNKNOWN(at);
	if (len >= LINE_BYTES_MAX || at >= TEXT_MAX ||
	    bpf_xdp_load_bytes(walk->ctx, walk->payload_at + from, s->out + at, len))
		s->is_odd = 1;
	else
		s->out_len = at + len;
}

/* Writes whole words of a text, of which so many bytes count. */
static ALWAYS_INLINE void put_text(struct scratch *s, const __u64 *text, __u32 words, __u32 len)
{
	__u32 at = bounded(s->out_len, TEXT_MAX - 1), i;

#pragma unroll
	for (i = 0; i < words; i++)
		*(__u64 *)(s->out + at + i * WORD) = text[i];
	s->out_len = at + len;
}

static ALWAYS_INLINE void put(struct scratch *s, __u8 byte)
{
	__u32 at = bounded(s->out_len, TEXT_MAX - 1);

	s->out[at] = byte;
	s->out_len = at + 1;
}

static ALWAYS_INLINE void put_decimal(struct scratch *s, __u32 number)
{
	__u32 unit;

#pragma unroll
	for (unit = 10000; unit > 1; unit /= 10)
		if (number >= unit)
			put(s, '0' + number / unit % 10);
	put(s, '0' + number % 10);
}

static ALWAYS_INLINE void put_hexadecimal(struct scratch *s, __u32 number)
{
	__u32 shift, i;

#pragma unroll
	for (i = 0; i < 4; i++) {
		__u32 digit = number >> (shift = 12 - 4 * i) & 15;

		if (!shift || number >> shift)
			put(s, digit < 10 ? '0' + digit : 'a' + digit - 10);
	}
}

/* Where the request came from (RFC 3261 section 18.2.1, RFC 3581 section 4). */
static __attribute__((noinline)) int put_source(struct scratch *s, const struct datagram *datagram)
{
	const __u64 received[2] = { text_word(";receive", WORD), text_word("d=", 2) };
	__u32 i;

	put(s, '=');
	put_decimal(s, ntohs(datagram->source_port));
	put_text(s, received, 2, 10);
#pragma unroll
	for (i = 0; i < 4; i++) {
		if (!datagram->is_ipv4)
			break;
		if (i)
			put(s, '.');
		put_decimal(s, datagram->source.halves[1] >> (32 + 8 * i) & 0xff);
	}
#pragma unroll
	for (i = 0; i < 8; i++) {
		if (datagram->is_ipv4)
			break;
		if (i)
			put(s, ':');
		put_hexadecimal(s, ntohs((__u16)(datagram->source.halves[i / 4] >> (16 * (i % 4)))));
	}
	return 0;
}

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

/* Reads the request, up to the empty line. Whether that is one of a kind that can be judged here. */
static ALWAYS_INLINE int is_read(struct walk *walk, const struct datagram *datagram)
{
	struct scratch *s = walk->s;
	__u32 len = datagram->payload_len, kind;

	UNKNOWN(len);
	if (!len || len >= TEXT_MAX || bpf_xdp_load_bytes(walk->ctx, datagram->payload_at, s->in, len))
		return 0;
	/* Nothing of a former request. */
	*(__u64 *)(s->in + len) = LOWER;
	s->len = len;
	s->lines = 0;
	s->carry = s->vias = 0;
	s->starts[0] = 0;
	s->is_ended = s->is_odd = s->has_tag = s->has_our_tag = 0;
#pragma unroll
	for (kind = 0; kind < KINDS; kind++)
		s->count[kind] = 0;
	bpf_loop(TEXT_MAX / WORD / STRIDE, find_lines, walk, 0);
	if (s->is_odd || !s->is_ended || s->lines < 2)
		return 0;
	bpf_loop(LINES_MAX, name_line, walk, 0);
	if (s->is_odd || s->count[TO] != 1)
		return 0;
	go_to(s, TO);
	bpf_loop(LINE_BYTES_MAX, find_tag, walk, 0);
	return 1;
}

static long copy_via(__u32 index, struct walk *walk)
{
	struct scratch *s = walk->s;
	__u32 line = s->first[VIA] + 1 + index;

	if (line >= LINES_MAX || line >= s->lines)
		return 1;
	/* Other lines may stand between them. */
	if (s->vias >> line & 1)
		copy(walk, s->starts[line], s->starts[line + 1]);
	return s->is_odd ? 1 : 0;
}

static ALWAYS_INLINE void copy_line(const struct walk *walk, __u32 kind, __u32 without)
{
	__u32 line = bounded(walk->s->first[kind], LINES_MAX - 1);

	copy(walk, walk->s->starts[line], walk->s->starts[line + 1] - without);
}

/* Writes the answer; whether it could. */
static ALWAYS_INLINE int is_written(struct walk *walk, const struct datagram *datagram)
{
	const struct sieve *sieve = walk->sieve;
	struct scratch *s = walk->s;
	__u32 digit_at, via, request_end = s->starts[1] - 2;

	if (s->has_tag || !s->count[VIA] || s->count[FROM] != 1 || s->count[CALL_ID] != 1 || s->count[CSEQ] != 1)
		return 0;
	/* SIP/2.0 ends the request line. */
	if (request_end < 16 || load(s->in + bounded(request_end - 8, TEXT_MAX - 1)) != text_word(" SIP/2.0", WORD))
		return 0;
	s->rport_at = 0;
	go_to(s, VIA);
	bpf_loop(LINE_BYTES_MAX, find_rport, walk, 0);
	if (s->is_odd || !s->rport_at)
		return 0;
	s->out_len = 0;
	put_text(s, sieve->head, HEAD_WORDS, sieve->head_len);
	via = bounded(s->first[VIA], LINES_MAX - 1);
	copy(walk, s->starts[via], s->rport_at);
	put_source(s, datagram);
	copy(walk, s->rport_at, s->starts[via + 1]);
	bpf_loop(LINES_MAX, copy_via, walk, 0);
	copy_line(walk, FROM, 0);
	copy_line(walk, TO, 2);
	put_text(s, sieve->to_tag, TAG_WORDS, sieve->to_tag_len);
	copy_line(walk, CALL_ID, 0);
	copy_line(walk, CSEQ, 0);
	digit_at = bounded(s->out_len + RETRY_AFTER_AT, TEXT_MAX - 1);
	put_text(s, sieve->tail, TAIL_WORDS, sieve->tail_len);
	s->out[digit_at] = '1' + bpf_get_prandom_u32() % 8;
	/* Nobody can have more sent to another than he sends. */
	return !s->is_odd && s->out_len <= s->len;
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

/* Turns the frame into the answer's. */
static ALWAYS_INLINE int answer(struct walk *walk, const struct datagram *datagram)
{
	struct scratch *s = walk->s;
	__u32 len = s->out_len, i;
	__u16 checksum = udp_checksum(s, datagram, len), *udp, *ip;
	__u8 *frame, *end;

	UNKNOWN(len);
	if (!len || len >= TEXT_MAX || bpf_xdp_store_bytes(walk->ctx, datagram->payload_at, s->out, len))
		return XDP_ABORTED;
	if (bpf_xdp_adjust_tail(walk->ctx, (int)(datagram->payload_at + len) - (int)datagram->frame_len))
		return XDP_ABORTED;
	frame = (void *)(long)walk->ctx->data;
	end = (void *)(long)walk->ctx->data_end;
	if (frame + ETH_HEADER + (datagram->is_ipv4 ? IPV4_HEADER : IPV6_HEADER) + UDP_HEADER > end)
		return XDP_ABORTED;
	swap((__u16 *)frame, (__u16 *)(frame + 6), 3);
	ip = (__u16 *)(frame + ETH_HEADER);
	if (datagram->is_ipv4) {
		__u64 sum = 0;

		ip[0] = htons(0x4500);
		ip[1] = htons(IPV4_HEADER + UDP_HEADER + len);
		ip[2] = 0;
		ip[3] = htons(0x4000);
		ip[4] = htons(64 << 8 | PROTOCOL_UDP);
		ip[5] = 0;
		swap(ip + 6, ip + 8, 2);
#pragma unroll
		for (i = 0; i < IPV4_HEADER / 2; i++)
			sum += ip[i];
		ip[5] = folded(sum);
		udp = ip + IPV4_HEADER / 2;
	} else {
		if (frame + ETH_HEADER + IPV6_HEADER + UDP_HEADER > end)
			return XDP_ABORTED;
		ip[0] = htons(0x6000);
		ip[1] = 0;
		ip[2] = htons(UDP_HEADER + len);
		ip[3] = htons(PROTOCOL_UDP << 8 | 64);
		swap(ip + 4, ip + 12, 8);
		udp = ip + IPV6_HEADER / 2;
	}
	swap(udp, udp + 1, 1);
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
