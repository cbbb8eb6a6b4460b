/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The little of the kernel's BPF interface that the programs use, so that the objects depend on no header of the machine
 * that builds them.
 */
#ifndef SLUICEGATE_KERNEL_H
#define SLUICEGATE_KERNEL_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef long long __s64;

#define SEC(name) __attribute__((section(name), used))
#define ALWAYS_INLINE inline __attribute__((always_inline))

/* Members of an anonymous map structure carry their values in types (BTF-defined maps). */
#define MAP_NUMBER(name, value) int(*name)[value]
#define MAP_TYPE(name, type) typeof(type) *name

#define MAP_ARRAY 2
#define MAP_PERCPU_ARRAY 6
#define MAP_XSK 17

enum xdp_action { XDP_ABORTED, XDP_DROP, XDP_PASS, XDP_TX, XDP_REDIRECT };

struct xdp_md {
	__u32 data;
	__u32 data_end;
	__u32 data_meta;
	__u32 ingress_ifindex;
	__u32 rx_queue_index;
	__u32 egress_ifindex;
};

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static __u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
static __u32 (*const bpf_get_prandom_u32)(void) = (void *)7;
static __s64 (*const bpf_csum_diff)(const __u32 *from, __u32 from_size, const __u32 *to, __u32 to_size,
				    __u32 seed) = (void *)28;
static long (*const bpf_redirect_map)(void *map, __u64 key, __u64 flags) = (void *)51;
static long (*const bpf_xdp_adjust_meta)(struct xdp_md *ctx, int delta) = (void *)54;
static long (*const bpf_xdp_adjust_tail)(struct xdp_md *ctx, int delta) = (void *)65;
static __u64 (*const bpf_ktime_get_coarse_ns)(void) = (void *)160;
static long (*const bpf_loop)(__u32 turns, void *step, void *ctx, __u64 flags) = (void *)181;
static long (*const bpf_xdp_load_bytes)(struct xdp_md *ctx, __u32 offset, void *to, __u32 len) = (void *)189;
static long (*const bpf_xdp_store_bytes)(struct xdp_md *ctx, __u32 offset, const void *from, __u32 len) = (void *)190;

#define ntohs(x) __builtin_bswap16(x)
#define htons(x) __builtin_bswap16(x)
#define ntohl(x) __builtin_bswap32(x)
#define htonl(x) __builtin_bswap32(x)

#endif
