/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Reads a SIP request as far as an answer needs it, and writes that. What is not understood whole is the process's to judge:
 * text is read only to be refused.
 */
#ifndef SLUICEGATE_TEXT_H
#define SLUICEGATE_TEXT_H

#include "sieve.h"

#define TEXT_MAX 2048
/* Header lines, the request line with them. */
#define LINES_MAX 64
/* Longest line that is copied. */
#define LINE_BYTES_MAX 1024
#define SHORT 80

/* Bytes looked at in one turn of a loop. */
#define BLOCK 64
#define CR_LF 0x0a0d
/* Lines, or parameters, likewise. */
#define FEW 4

enum kind { OTHER, VIA, FROM, TO, CALL_ID, CSEQ, KINDS };

/*
 * A request, what is known of it, and the answer. Numbers are kept here rather than on the stack: the verifier then knows
 * nothing of them, and has one state where it had one for each value.
 */
struct scratch {
	__u8 in[TEXT_MAX + 2 * SHORT];
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

#define ONES 0x0101010101010101ULL
#define LOWER (0x20 * ONES)
#define HIGH (0x80 * ONES)

/* Bytes that equal one, as the highest bits of theirs. */
static ALWAYS_INLINE __u64 equal(__u64 word, __u8 byte)
{
	word ^= byte * ONES;
	return ~(((word & ~HIGH) + ~HIGH) | word | ~HIGH);
}

/* Control characters, as one bit for each byte. */
static ALWAYS_INLINE __u64 controls(__u64 word)
{
	const __u64 marks = ~(((word & ~HIGH) + 0x60 * ONES) | word | ~HIGH);

	return (marks >> 7) * 0x0102040810204080ULL >> 56;
}

/* The number of the byte with the lowest of such highest bits. */
static ALWAYS_INLINE __u32 lowest(__u64 marks)
{
	return ((((marks & -marks) - 1) & ONES) * ONES >> 56) - 1;
}

/* The number of the lowest bit. */
static ALWAYS_INLINE __u32 lowest_bit(__u64 bits)
{
	bits = (bits & -bits) - 1;
	bits -= bits >> 1 & 0x55 * ONES;
	bits = (bits & 0x33 * ONES) + (bits >> 2 & 0x33 * ONES);
	return ((bits + (bits >> 4)) & 0x0f * ONES) * ONES >> 56;
}

/* Notes where lines end. Only CR LF ends one, and no other control character is among them. */
static long find_lines(__u32 index, struct walk *walk)
{
	struct scratch *s = walk->s;
	__u32 i, line = s->lines, at = index * BLOCK;
	__u64 found = 0;

	if (index >= TEXT_MAX / BLOCK || at >= s->len)
		return 1;
#pragma unroll
	for (i = 0; i < BLOCK / WORD; i++)
		found |= controls(load(s->in + bounded(at, TEXT_MAX - BLOCK) + i * WORD)) << (i * WORD);
	/* The line feed of an end that began in the last block. */
	if (s->carry)
		found &= ~1ULL;
	s->carry = 0;
	for (i = 0; i < BLOCK / 2 && found; i++) {
		const __u32 bit = lowest_bit(found), end = at + bit;

		if (*(const __u16 *)(s->in + bounded(end, TEXT_MAX - 1)) != CR_LF) {
			s->is_odd = 1;
			return 1;
		}
		s->carry = bit == BLOCK - 1;
		found &= ~(3ULL << bit);
		line = bounded(line, LINES_MAX - 1);
		if (end == s->starts[line]) {
			s->lines = line;
			s->is_ended = 1;
			return 1;
		}
		if (line == LINES_MAX - 1) {
			s->is_odd = 1;
			return 1;
		}
		line++;
		s->starts[bounded(line, LINES_MAX - 1)] = end + 2;
	}
	s->lines = line;
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

/* Notes what a line is. */
static ALWAYS_INLINE void name_line(struct scratch *s, __u32 line)
{
	/* ':' and '-' are what they were: no control characters are here. */
	const __u64 lower = load(s->in + bounded(s->starts[line], TEXT_MAX - 1)) | LOWER;
	__u32 kind = OTHER;

	switch (lower & 0xff) {
	case ' ':
		s->is_odd = 1;
		return;
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
		return;
	case 'p':
		if (lower == text_word("proxy-au", WORD))
			s->is_odd = 1;
		return;
	}
	if (kind == OTHER)
		return;
	if (!s->count[kind])
		s->first[kind] = line;
	s->count[kind]++;
	if (kind == VIA)
		s->vias |= 1ULL << line;
}

static long name_lines(__u32 index, struct walk *walk)
{
	struct scratch *s = walk->s;
	__u32 i;

#pragma unroll
	for (i = 1; i <= FEW; i++) {
		const __u32 line = index * FEW + i;

		if (line >= LINES_MAX || line >= s->lines || s->is_odd)
			return 1;
		name_line(s, line);
	}
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

/* Looks at one parameter of To, for a tag: also where none can be, such as in a display name. */
static ALWAYS_INLINE int is_tag_found(struct scratch *s, const struct sieve *sieve)
{
	__u32 at = NEXT_OF(s, equal(word, ';') | equal(word, ' '));
	__u64 lower;
	__u8 next, after;

	if (at >= s->end)
		return s->cursor >= s->end;
	at = bounded(at + 1, TEXT_MAX - 1);
	lower = load(s->in + at) | LOWER;
	if ((lower & 0xffffff) != text_word("tag", 3))
		return 0;
	next = s->in[at + 3];
	if (next != '=' && next != ' ' && next != ';' && next != '\r')
		return 0;
	s->has_tag = 1;
	after = s->in[at + 20];
	s->has_our_tag = next == '=' && load(s->in + at + 4) == sieve->tag[0] &&
			 load(s->in + at + 12) == sieve->tag[1] && (after == '\r' || after == ';');
	return 1;
}

static long find_tag(__u32 index, struct walk *walk)
{
	__u32 i;

	(void)index;
#pragma unroll
	for (i = 0; i < FEW; i++)
		if (is_tag_found(walk->s, walk->sieve))
			return 1;
	return 0;
}

/* Looks at one parameter of the topmost Via, for an rport without a value (RFC 3581). */
static ALWAYS_INLINE int is_via_read(struct scratch *s)
{
	__u32 at = NEXT_OF(s, equal(word, ';') | equal(word, ',') | equal(word, '"'));
	__u64 lower;
	__u8 mark, next;

	if (at >= s->end)
		return s->cursor >= s->end;
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

static long find_rport(__u32 index, struct walk *walk)
{
	__u32 i;

	(void)index;
#pragma unroll
	for (i = 0; i < FEW; i++)
		if (is_via_read(walk->s))
			return 1;
	return 0;
}

/* Copies from the request into the answer: what is short by whole words, which costs less than to call somebody. */
static ALWAYS_INLINE void copy(const struct walk *walk, __u32 from, __u32 to)
{
	struct scratch *s = walk->s;
	__u32 at = bounded(s->out_len, TEXT_MAX - 1), len = to - from, i;

	if (len <= SHORT) {
		from = bounded(from, TEXT_MAX - 1);
#pragma unroll
		for (i = 0; i < SHORT; i += WORD)
			*(__u64 *)(s->out + at + i) = load(s->in + from + i);
	} else {
		UNKNOWN(len);
		if (!len || len >= LINE_BYTES_MAX ||
		    bpf_xdp_load_bytes(walk->ctx, walk->payload_at + from, s->out + at, len)) {
			s->is_odd = 1;
			return;
		}
	}
	s->out_len = at + len;
	if (s->out_len >= TEXT_MAX)
		s->is_odd = 1;
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

static ALWAYS_INLINE void put_word(struct scratch *s, __u64 text, __u32 len)
{
	__u32 at = bounded(s->out_len, TEXT_MAX - 1);

	*(__u64 *)(s->out + at) = text;
	s->out_len = at + len;
}

/* A character and a number of 16 bits. */
static ALWAYS_INLINE void put_decimal(struct scratch *s, __u8 before, __u32 number)
{
	__u64 text = 0;
	__u32 len = 1;

	do {
		/* A tenth, without division. */
		const __u32 tens = number * 52429U >> 19;

		text = text << 8 | ('0' + number - 10 * tens);
		number = tens;
		len++;
	} while (number && len < 6);
	put_word(s, text << 8 | before, len);
}

static ALWAYS_INLINE void put_hexadecimal(struct scratch *s, __u8 before, __u32 number)
{
	__u64 text = 0;
	__u32 len = 1;

	do {
		const __u32 digit = number & 15;

		text = text << 8 | (digit < 10 ? '0' + digit : 'a' + digit - 10);
		number >>= 4;
		len++;
	} while (number && len < 5);
	put_word(s, before ? text << 8 | before : text, before ? len : len - 1);
}

/* Where the request came from (RFC 3261 section 18.2.1, RFC 3581 section 4). */
static __attribute__((noinline)) int put_source(struct scratch *s, const struct datagram *datagram)
{
	__u64 octets = datagram->source.halves[1] >> 32;
	__u32 i;

	put_decimal(s, '=', ntohs(datagram->source_port));
	put_word(s, text_word(";receive", WORD), WORD);
	if (datagram->is_ipv4) {
		put_word(s, text_word("d", 1), 1);
		for (i = 0; i < 4; i++, octets >>= 8)
			put_decimal(s, i ? '.' : '=', octets & 0xff);
		return 0;
	}
	put_word(s, text_word("d=", 2), 2);
	for (i = 0; i < 8; i++)
		put_hexadecimal(s, i ? ':' : 0, ntohs((__u16)(datagram->source.halves[i / 4] >> (16 * (i % 4)))));
	return 0;
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
#pragma unroll
	for (kind = 0; kind < BLOCK; kind += WORD)
		*(__u64 *)(s->in + len + kind) = LOWER;
	s->len = len;
	s->lines = 0;
	s->carry = s->vias = 0;
	s->starts[0] = 0;
	s->is_ended = s->is_odd = s->has_tag = s->has_our_tag = 0;
#pragma unroll
	for (kind = 0; kind < KINDS; kind++)
		s->count[kind] = 0;
	bpf_loop(TEXT_MAX / BLOCK, find_lines, walk, 0);
	if (s->is_odd || !s->is_ended || s->lines < 2)
		return 0;
	bpf_loop(LINES_MAX / FEW, name_lines, walk, 0);
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
	if (s->count[VIA] > 1)
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

#endif
