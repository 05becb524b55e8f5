// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// What one would write in C to pace UDP without knowing RoCE: flows by 5-tuple in the kernel's hash map, and earliest departure
// times for fq. The bench measures it beside ours.
//
// Nothing is locked: two CPUs with packets of one flow may give two of them the same turn.

#include <linux/bpf.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int (*name)[value]
#define __type(name, value) typeof(value) *name

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static u64 (*const bpf_ktime_get_ns)(void) = (void *)5;

// As many as the data plane's table has by default.
#define FLOWS 65536
// 50 Gbit/s, as the minimal pacer.
#define BITS_PER_NS 50
#define BITS_PER_BYTE 8
// fq's.
#define HORIZON_NS 10000000000ull
#define UDP 17
#define IPV4_NO_OPTIONS 0x45

struct tuple {
	u32 saddr;
	u32 daddr;
	u16 sport;
	u16 dport;
	u32 protocol;
};

struct flow {
	u64 next_ns;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FLOWS);
	__type(key, struct tuple);
	__type(value, struct flow);
} flows SEC(".maps");

// Ethernet, IPv4 without options, UDP: what is parsed.
struct headers {
	u8 macs[12];
	u8 type[2];
	u8 version_ihl;
	u8 tos;
	u8 len_id_fragment_ttl[7];
	u8 protocol;
	u16 checksum;
	u32 saddr;
	u32 daddr;
	u16 sport;
	u16 dport;
} __attribute__((packed));

SEC("classifier")
int pace_tuple(struct __sk_buff *skb)
{
	struct headers *headers = (void *)(long)skb->data;
	struct tuple tuple = {};
	struct flow *flow;
	u64 now_ns, departure_ns, took_ns;

	if ((void *)(headers + 1) > (void *)(long)skb->data_end)
		return -1;
	if (headers->type[0] != 0x08 || headers->type[1] != 0 || headers->version_ihl != IPV4_NO_OPTIONS ||
	    headers->protocol != UDP)
		return -1;
	tuple.saddr = headers->saddr;
	tuple.daddr = headers->daddr;
	tuple.sport = headers->sport;
	tuple.dport = headers->dport;
	tuple.protocol = headers->protocol;

	now_ns = bpf_ktime_get_ns();
	took_ns = (u64)skb->len * BITS_PER_BYTE / BITS_PER_NS;
	flow = bpf_map_lookup_elem(&flows, &tuple);
	if (!flow) {
		struct flow first = { .next_ns = now_ns + took_ns };

		bpf_map_update_elem(&flows, &tuple, &first, BPF_ANY);
		return -1;
	}
	departure_ns = flow->next_ns > now_ns ? flow->next_ns : now_ns;
	flow->next_ns = departure_ns + took_ns;
	if (departure_ns - now_ns > HORIZON_NS)
		return 2;
	skb->tstamp = departure_ns;
	return -1;
}

char _license[] SEC("license") = "Dual MIT/GPL";
