// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * The XDP program of a gate: ARP, who has an address, what `local` and `peers` list, and what may answer the host go to
 * its kernel;
 * everything else goes to the gate process, or nowhere if that has not been heard of for a while.
 *
 * src/classify.rs makes the same decision; a test compares the two on random packets.
 */
#include "kernel.h"
#include "gate.h"

#define ETH_HEADER 14
#define ETHERTYPE_IPV4 0x0800
#define ETHERTYPE_ARP 0x0806
#define ETHERTYPE_IPV6 0x86dd
#define PROTOCOL_ICMP 1
#define PROTOCOL_TCP 6
#define PROTOCOL_UDP 17
#define PROTOCOL_ICMPV6 58
#define PROTOCOL_CAPABILITY 253
#define CAPABILITY_PORT 7253
#define PROTOCOL_FRAGMENT 44
#define UDP_HEADER 8
/* Attempts to take from the bucket before a packet counts as too many. */
#define BUCKET_TRIES 4

struct {
	MAP_NUMBER(type, MAP_ARRAY);
	MAP_NUMBER(max_entries, 1);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, struct config);
} config SEC(".maps");

/* When the gate process was last alive, in nanoseconds of CLOCK_MONOTONIC. */
struct {
	MAP_NUMBER(type, MAP_ARRAY);
	MAP_NUMBER(max_entries, 1);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, __u64);
} heartbeat SEC(".maps");

/* Time up to which each entry of `local` and `peers` has spent its rate (generic cell rate algorithm). */
struct {
	MAP_NUMBER(type, MAP_ARRAY);
	MAP_NUMBER(max_entries, BUCKETS);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, __u64);
} bucket SEC(".maps");

/* Dropped packets by wire::Reason. */
struct {
	MAP_NUMBER(type, MAP_PERCPU_ARRAY);
	MAP_NUMBER(max_entries, REASONS_MAX);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, __u64);
} counters SEC(".maps");

/* Which identifiers of pings the gate translates, a bit for each from `translated_first` on. */
struct {
	MAP_NUMBER(type, MAP_ARRAY);
	MAP_NUMBER(max_entries, PINGS_WORDS);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, __u64);
} pings SEC(".maps");

/* Datagrams for the host of which fragments may still come. */
struct {
	MAP_NUMBER(type, MAP_ARRAY);
	MAP_NUMBER(max_entries, PLACES);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, struct place);
} fragments SEC(".maps");

/* AF_XDP sockets by port * QUEUES_MAX + queue. */
struct {
	MAP_NUMBER(type, MAP_XSK);
	MAP_NUMBER(max_entries, 2 * QUEUES_MAX);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, __u32);
} sockets SEC(".maps");

struct ipv4 {
	__u8 version_ihl;
	__u8 tos;
	__u16 length;
	__u16 id;
	__u16 fragment;
	__u8 ttl;
	__u8 protocol;
	__u16 checksum;
	__u8 source[4];
	__u8 destination[4];
} __attribute__((packed));

struct ipv6 {
	__u8 version_class;
	__u8 rest[3];
	__u16 length;
	__u8 next_header;
	__u8 hop_limit;
	__u8 source[16];
	__u8 destination[16];
} __attribute__((packed));

struct fragment {
	__u8 next_header;
	__u8 reserved;
	__u16 offset_more;
	__u32 id;
} __attribute__((packed));

/*
 * CLASS_FIRST: the host's, and other fragments of its datagram follow. CLASS_LISTED: the host's if `local` says so. CLASS_ANSWER: the host's if it answers what the host sent, which the
 * nf_tables filter behind this program knows.
 */
enum class { CLASS_GATE, CLASS_LINK, CLASS_HOST, CLASS_FIRST, CLASS_LISTED, CLASS_ANSWER };

/* What is known of a packet before its IP header is read, and by which entry the host receives it. */
struct arrival {
	const struct config *config;
	__u64 now;
	__u8 port; /* bit 0 outside, bit 1 inside */
	__u32 bucket;
	__u64 interval_ns;
	/* Of a fragment, in bytes. */
	struct datagram datagram;
	__u32 place;
	__u32 offset;
	__u32 len;
	__u8 is_fragment;
	__u8 more;
};

static ALWAYS_INLINE int drop(__u32 reason)
{
	__u64 *counter = bpf_map_lookup_elem(&counters, &reason);

	if (counter)
		*counter += 1;
	return XDP_DROP;
}

static ALWAYS_INLINE struct address mapped(const __u8 *ipv4)
{
	union {
		__u8 bytes[16];
		struct address address;
	} u = { .bytes = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ipv4[0], ipv4[1], ipv4[2], ipv4[3] } };

	return u.address;
}

static ALWAYS_INLINE struct address whole(const __u8 *ipv6)
{
	struct address address;

	__builtin_memcpy(&address, ipv6, sizeof(address));
	return address;
}

static ALWAYS_INLINE int same(struct address a, struct address b)
{
	return a.high == b.high && a.low == b.low;
}

static ALWAYS_INLINE int is_any(struct address address)
{
	return address.high == 0 && address.low == 0;
}

static ALWAYS_INLINE __u16 number_at(const __u8 *bytes)
{
	return (__u16)(bytes[0] << 8 | bytes[1]);
}

static ALWAYS_INLINE int is_translated_ping(const struct config *config, __u16 identifier)
{
	__u32 place = identifier - config->translated_first, word_number = place / 64;
	const __u64 *word;

	if (identifier < config->translated_first || identifier > config->translated_last)
		return 0;
	word = bpf_map_lookup_elem(&pings, &word_number);
	return word && *word >> (place % 64) & 1;
}

/*
 * Whose an ICMP message to one of the host's addresses is: an answer to a ping that is translated and an error about a
 * packet of a translation, or with a capability header, are the gate's; an error about any other is about the host's own.
 * CLASS_LISTED: neither. A quoted header with options is nobody's: the gate sends none.
 */
static ALWAYS_INLINE enum class icmp(struct arrival *arrival, struct address destination, int is_ipv4,
				     const __u8 *message, const __u8 *end)
{
	const struct config *config = arrival->config;
	const __u8 *transport = message + (is_ipv4 ? 28 : 48);
	int is_translated = same(config->translated, destination), is_error;
	__u16 port, other = 0;
	__u8 protocol;

	if (is_ipv4 && message + 6 <= end && message[0] == 0)
		return is_translated && is_translated_ping(config, number_at(message + 4)) ? CLASS_GATE : CLASS_ANSWER;
	if (!is_ipv4 && message + 6 <= end && message[0] == 129)
		return CLASS_ANSWER;
	if (message + 18 > end)
		return CLASS_LISTED;
	/* Unreachable, too big, time exceeded, wrong parameter. */
	if (is_ipv4)
		is_error = (message[0] == 3 || message[0] == 11 || message[0] == 12) && message[8] == 0x45;
	else
		is_error = message[0] >= 1 && message[0] <= 4 && message[8] >> 4 == 6;
	if (!is_error)
		return CLASS_LISTED;
	protocol = is_ipv4 ? message[17] : message[14];
	switch (protocol) {
	case PROTOCOL_CAPABILITY:
		return CLASS_GATE;
	case PROTOCOL_ICMP:
	case PROTOCOL_ICMPV6:
		if (transport + 6 > end)
			return CLASS_LISTED;
		port = number_at(transport + 4);
		break;
	case PROTOCOL_TCP:
	case PROTOCOL_UDP:
		if (transport + 4 > end)
			return CLASS_LISTED;
		port = number_at(transport);
		other = number_at(transport + 2);
		break;
	default:
		return CLASS_LISTED;
	}
	if (protocol == PROTOCOL_UDP && (port == CAPABILITY_PORT || other == CAPABILITY_PORT))
		return CLASS_GATE;
	if (is_translated && port >= config->translated_first && port <= config->translated_last)
		return CLASS_GATE;
	arrival->bucket = ERRORS;
	arrival->interval_ns = config->error_interval_ns;
	return CLASS_HOST;
}

/* A packet for one of the host's own addresses: does the host receive it? */
static ALWAYS_INLINE enum class own_host(struct arrival *arrival, struct address source, struct address destination,
					 __u8 protocol, int is_ipv4, const __u8 *transport, const __u8 *end)
{
	const struct config *config = arrival->config;
	__u16 source_port = 0, port = 0;
	__u32 i;
	int own = 0, is_icmp = protocol == (is_ipv4 ? PROTOCOL_ICMP : PROTOCOL_ICMPV6);

	for (i = 0; i < OWN_MAX && i < config->own_count && !own; i++)
		own = config->own[i].ports & arrival->port && same(config->own[i].address, destination);
	if (!own)
		return CLASS_GATE;
	if (is_icmp) {
		enum class about = icmp(arrival, destination, is_ipv4, transport, end);

		if (about != CLASS_LISTED)
			return about;
		protocol = PROTOCOL_ICMP;
	} else {
		if (transport + 4 > end)
			return CLASS_GATE;
		source_port = number_at(transport);
		port = number_at(transport + 2);
	}
	if (protocol == PROTOCOL_TCP)
		for (i = 0; i < PEERS_MAX && i < config->peer_count; i++)
			if (config->peers[i].port == source_port && config->peers[i].own_port == port &&
			    same(config->peers[i].address, source)) {
				arrival->bucket = LOCAL_MAX + i;
				arrival->interval_ns = config->peers[i].interval_ns;
				return CLASS_HOST;
			}
	for (i = 0; i < LOCAL_MAX && i < config->local_count; i++)
		if (config->local[i].protocol == protocol && config->local[i].ports & arrival->port &&
		    (is_icmp || (port >= config->local[i].first && port <= config->local[i].last)) &&
		    (is_any(config->local[i].address) || same(config->local[i].address, destination))) {
			arrival->bucket = i;
			arrival->interval_ns = config->local[i].interval_ns;
			return CLASS_HOST;
		}
	if (protocol == PROTOCOL_UDP && (source_port == CAPABILITY_PORT || port == CAPABILITY_PORT))
		return CLASS_GATE;
	if (same(config->translated, destination) && port >= config->translated_first && port <= config->translated_last)
		return CLASS_GATE;
	return protocol == PROTOCOL_TCP || protocol == PROTOCOL_UDP ? CLASS_ANSWER : CLASS_GATE;
}

static ALWAYS_INLINE struct datagram *noted(struct place *place, __u32 id)
{
	return &place->datagrams[id % PLACE_DATAGRAMS];
}

/* A fragment that is not the first: the host's if it goes on where the last one ended, so nothing overlaps. */
static ALWAYS_INLINE enum class follows(struct arrival *arrival)
{
	struct place *place = bpf_map_lookup_elem(&fragments, &arrival->place);
	struct datagram *datagram;

	if (!place)
		return CLASS_GATE;
	datagram = noted(place, arrival->datagram.id);
	if (datagram->until <= arrival->now || datagram->id != arrival->datagram.id ||
	    datagram->next != arrival->offset || datagram->bucket >= LOCAL_MAX ||
	    !same(datagram->source, arrival->datagram.source) ||
	    !same(datagram->destination, arrival->datagram.destination))
		return CLASS_GATE;
	arrival->bucket = datagram->bucket;
	arrival->interval_ns = arrival->config->local[arrival->bucket].interval_ns;
	datagram->next = arrival->offset + arrival->len;
	if (!arrival->more)
		datagram->until = 0;
	return CLASS_HOST;
}

/* As own_host(), for fragments too: those of UDP datagrams whose first fragment `local` lists. */
static ALWAYS_INLINE enum class host(struct arrival *arrival, struct address source, struct address destination,
				     __u8 protocol, int is_ipv4, const __u8 *transport, const __u8 *end)
{
	enum class whole;

	if (arrival->is_fragment) {
		if (protocol != PROTOCOL_UDP || !arrival->len || (arrival->more && arrival->len % 8) ||
		    arrival->offset + arrival->len > FRAGMENTED_BYTES_MAX)
			return CLASS_GATE;
		arrival->datagram.source = source;
		arrival->datagram.destination = destination;
		if (arrival->offset)
			return follows(arrival);
		if (!arrival->more || arrival->len < UDP_HEADER || transport + UDP_HEADER > end)
			return CLASS_GATE;
	}
	whole = own_host(arrival, source, destination, protocol, is_ipv4, transport, end);
	if (!arrival->is_fragment)
		return whole;
	return whole == CLASS_HOST ? CLASS_FIRST : CLASS_GATE;
}

/* Senders share places by this octet: the last of an IPv4 address, and of an IPv6 address' first half. */
static ALWAYS_INLINE void fragment(struct arrival *arrival, const __u8 *packet, __u16 offset_more, __u32 len)
{
	arrival->is_fragment = 1;
	arrival->place = (arrival->port & 1 ? 0 : PLACES / 2) + packet[15] % (PLACES / 2);
	arrival->offset = offset_more;
	arrival->len = len;
}

static ALWAYS_INLINE enum class classify_ipv4(struct arrival *arrival, const __u8 *packet, const __u8 *end)
{
	const struct ipv4 *ip = (const void *)packet;
	__u32 header_len, total_len;

	if (packet + sizeof(*ip) > end)
		return CLASS_GATE;
	header_len = (ip->version_ihl & 15) * 4;
	if (ip->version_ihl >> 4 != 4 || header_len < sizeof(*ip) || packet + header_len > end)
		return CLASS_GATE;
	if (ip->fragment & htons(0x3fff)) {
		total_len = ntohs(ip->length);
		if (header_len != sizeof(*ip) || total_len < sizeof(*ip))
			return CLASS_GATE;
		fragment(arrival, packet, (ntohs(ip->fragment) & 0x1fff) * 8, total_len - sizeof(*ip));
		arrival->more = (ip->fragment & htons(0x2000)) != 0;
		arrival->datagram.id = ntohs(ip->id);
	}
	return host(arrival, mapped(ip->source), mapped(ip->destination), ip->protocol, 1, packet + header_len, end);
}

static ALWAYS_INLINE enum class classify_ipv6(struct arrival *arrival, const __u8 *packet, const __u8 *end)
{
	const struct ipv6 *ip = (const void *)packet;
	const __u8 *transport = packet + sizeof(*ip);
	const struct fragment *part = (const void *)transport;
	__u8 protocol;
	__u32 len;

	if (transport > end || ip->version_class >> 4 != 6)
		return CLASS_GATE;
	/*
	 * Who has an address: nobody beyond the link can send a hop limit of 255 (RFC 4861 section 6.1). Not who is a
	 * router, nor redirects: neighbours would choose the host's routes, and the gate follows those.
	 */
	if (ip->next_header == PROTOCOL_ICMPV6 && ip->hop_limit == 255 && transport + 1 <= end &&
	    (transport[0] == 135 || transport[0] == 136))
		return CLASS_LINK;
	/* Multicast listener discovery, without which switches forget who wants neighbour discovery (RFC 3810). */
	if (ip->next_header == 0 && ip->hop_limit == 1 && ip->source[0] == 0xfe && (ip->source[1] & 0xc0) == 0x80 &&
	    ip->destination[0] == 0xff)
		return CLASS_LINK;
	protocol = ip->next_header;
	if (protocol == PROTOCOL_FRAGMENT) {
		len = ntohs(ip->length);
		if (transport + sizeof(*part) > end || len < sizeof(*part))
			return CLASS_GATE;
		fragment(arrival, packet, ntohs(part->offset_more) & 0xfff8, len - sizeof(*part));
		arrival->more = (part->offset_more & htons(1)) != 0;
		arrival->datagram.id = ntohl(part->id);
		protocol = part->next_header;
		transport += sizeof(*part);
	}
	return host(arrival, whole(ip->source), whole(ip->destination), protocol, 0, transport, end);
}

static ALWAYS_INLINE enum class classify(struct arrival *arrival, const __u8 *frame, const __u8 *end)
{
	__u16 ethertype = (__u16)(frame[12] << 8 | frame[13]);

	switch (ethertype) {
	case ETHERTYPE_ARP:
		return CLASS_LINK;
	case ETHERTYPE_IPV4:
		return classify_ipv4(arrival, frame + ETH_HEADER, end);
	case ETHERTYPE_IPV6:
		return classify_ipv6(arrival, frame + ETH_HEADER, end);
	default:
		return CLASS_GATE;
	}
}

/* Spends one packet of a rate; false if there is nothing left. */
static ALWAYS_INLINE int spend(const struct arrival *arrival, __u64 *spent, __u64 interval_ns)
{
	__u64 old, from;
	int i;

	for (i = 0; i < BUCKET_TRIES; i++) {
		old = *(volatile __u64 *)spent;
		from = old > arrival->now ? old : arrival->now;
		if (from - arrival->now > arrival->config->burst_ns)
			return 0;
		if (__sync_val_compare_and_swap(spent, old, from + interval_ns) == old)
			return 1;
	}
	return 0;
}

/* Spends one packet of its entry's rate; false if there is nothing left. */
static ALWAYS_INLINE int within_rate(const struct arrival *arrival)
{
	__u32 bucket_number = arrival->bucket;
	__u64 *spent = bpf_map_lookup_elem(&bucket, &bucket_number);

	return spent && spend(arrival, spent, arrival->interval_ns);
}

/*
 * Notes that fragments of this datagram may follow, in place of an older one; false if its place has had its share. Senders
 * send the fragments of a datagram in one go, so a few of each sender suffice.
 */
static ALWAYS_INLINE int expects(const struct arrival *arrival)
{
	struct place *place = bpf_map_lookup_elem(&fragments, &arrival->place);
	struct datagram *datagram;

	if (!place || !spend(arrival, &place->spent, arrival->config->fragmented_interval_ns))
		return 0;
	datagram = noted(place, arrival->datagram.id);
	datagram->source = arrival->datagram.source;
	datagram->destination = arrival->datagram.destination;
	datagram->id = arrival->datagram.id;
	datagram->next = arrival->len;
	datagram->bucket = arrival->bucket;
	datagram->until = arrival->now + arrival->config->fragment_wait_ns;
	return 1;
}

static ALWAYS_INLINE int is_foreign(const __u8 *frame, const __u8 *mac)
{
	return !(frame[0] & 1) && (frame[0] != mac[0] || frame[1] != mac[1] || frame[2] != mac[2] ||
				   frame[3] != mac[3] || frame[4] != mac[4] || frame[5] != mac[5]);
}

SEC("xdp")
int gate(struct xdp_md *ctx)
{
	const __u8 *frame = (const void *)(long)ctx->data;
	const __u8 *end = (const void *)(long)ctx->data_end;
	__u32 zero = 0, port;
	const struct config *configured = bpf_map_lookup_elem(&config, &zero);
	const __u64 *alive = bpf_map_lookup_elem(&heartbeat, &zero);
	struct arrival arrival = {};
	long result;

	if (frame + ETH_HEADER > end)
		return drop(REASON_FRAME_TRUNCATED);
	if (!configured || !alive)
		return drop(REASON_HEARTBEAT_STALE);
	port = ctx->ingress_ifindex == configured->ifindex[1];
	if (is_foreign(frame, configured->mac[port]))
		return drop(REASON_NOT_FOR_SERVICE);

	arrival.now = bpf_ktime_get_ns();
	arrival.config = configured;
	arrival.port = 1 << port;
	switch (classify(&arrival, frame, end)) {
	case CLASS_LINK:
		return XDP_PASS;
	case CLASS_HOST:
		return within_rate(&arrival) ? XDP_PASS : drop(REASON_LOCAL_RATE);
	case CLASS_FIRST:
		return within_rate(&arrival) && expects(&arrival) ? XDP_PASS : drop(REASON_LOCAL_RATE);
	case CLASS_ANSWER:
		/* The filter stands before the first heartbeat. */
		return *(volatile const __u64 *)alive ? XDP_PASS : drop(REASON_HEARTBEAT_STALE);
	default:
		break;
	}
	if ((__s64)(arrival.now - *(volatile const __u64 *)alive) > (__s64)configured->heartbeat_limit_ns)
		return drop(REASON_HEARTBEAT_STALE);
	if (ctx->rx_queue_index >= QUEUES_MAX)
		return drop(REASON_RECEIVE_FULL);
	result = bpf_redirect_map(&sockets, port * QUEUES_MAX + ctx->rx_queue_index, XDP_DROP);
	if (result != XDP_REDIRECT)
		return drop(REASON_RECEIVE_FULL);
	return XDP_REDIRECT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
