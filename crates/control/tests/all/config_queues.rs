//! Tests of the keys that an order of frames (`egress`) allows or refuses, and of a worker's
//! capacity. Each mistake causes a single clear error with its place and a remedy.

use crate::wrong::appended;

const FLOW_QUEUES: &str = r#"
@red 100
egress = "fq-codel"
queue = { excess = "hold" }
wfq = { weights = [1, 2] }
#! 7:20: port "vm3": only a `fair-share` output can leave frames in the senders' rings; set excess
#!   = "drop", or egress = "fair-share" on a shared port
#! 8:7: port "vm3": `wfq` has no effect with egress = "fq-codel"; set egress = "wfq", or remove
#!   `wfq`
@red 100
egress = "fq-codel"
queue = { bytes = 1000000, excess = "drop" }
shape = { receive = "20M" }

[[port]]
name = "vm4"
vhost-user.socket = "/run/vm4.sock"
tenant = "red"
vlan = 100
egress = "fq-codel"
link = "100M"

[[port]]
name = "vm5"
vhost-user.socket = "/run/vm5.sock"
tenant = "red"
vlan = 100
egress = "fq-codel"
receive = { rate = "100M" }
#! none
@up 100
egress = "fq-codel"
#! 5:10: port "up": without a rate, no frame of a VM waits in the flow queues of a shared port;
#!   add `link`, the rate of the port's link
@up 100
egress = "fq-codel"
link = "100M"
#! none
"#;

#[test]
fn flow_queues() {
    appended(FLOW_QUEUES);
}

const FLOW_QUEUES_WITHIN: &str = r#"
@up 100
egress = "fq-codel"
link = "100M"
queue = { flows = true }
#! 7:19: port "up": `flows` is only for outputs with `fair-share` or `wfq`; remove `flows`; egress
#!   = "fq-codel" alone gives each flow of the port its own queue
@up 100
egress = "fair-share"
link = "100M"
queue = { flows = true, excess = "hold" }
#! 7:34: port "up": with `flows`, no frame stays in a sender's ring, because frames in a ring have
#!   a single order; remove `excess` or `flows`
@up 100
egress = "fair-share"
link = "100M"
queue = { flows = true, excess = "drop", wait_us = 100000 }

[[port]]
name = "up2"
tap.interface = "up1"
vlan = 100
egress = "wfq"
link = "100M"
queue = { flows = true }
#! none
"#;

#[test]
fn only_outputs_with_shares_have_flow_queues_within() {
    appended(FLOW_QUEUES_WITHIN);
}

const WRONG_TYPES: &str = r#"
[[port]]
name = "up"
tap.interface = "up0"
vlan = 100
egress = true
queue = { excess = 1, flows = 5 }
wfq = { weights = 5, map = [8] }
#! 5:10: port "up": `egress`: true is not valid; write one of fifo, fair-share, wfq, fq-codel
#! 6:20: port "up": `queue.excess`: not a text; write a text in quotes, as the reference lists it
#! 6:31: port "up": `queue.flows`: 5 is not valid; write true or false
#! 7:19: port "up": `wfq.weights`: 5 is not valid; write a list in brackets
#! 7:28: port "up": `wfq.map`: a list is not valid; write a table in braces
"#;

#[test]
fn a_value_of_a_wrong_type_is_told_what_to_write() {
    appended(WRONG_TYPES);
}

const SHAPED: &str = r#"
@red 100
egress = "wfq"
shape = { receive = "20M" }
#! 7:21: port "vm3": `wfq` uses `link` as its rate, not `shape.receive`; write the rate as `link`
"#;

#[test]
fn a_shared_order_has_no_shaper() {
    appended(SHAPED);
}

const INBOUND: &str = r#"
@red 100
inbound = { rate = "1G" }
#! 6:11: port "vm3": `inbound` is only for a shared port; move `inbound` to the uplink; limit what
#!   this port receives with `receive`
@up 100
inbound = {}
#! 5:11: port "up": `inbound` has no rate that the tenants could share; add `link`, the rate of
#!   the port's link
@up 100
inbound = { rate = "100k" }
#! 5:20: port "up": `inbound.rate` 100k is out of range; write 1M to 400G
@up 100
link = "1G"
inbound = { rate = "2G" }
#! 6:20: port "up": `inbound.rate` 2G is not below `link` 1G; write less than `link`, or remove
#!   `rate` for 95 % of it
@up 100
link = "1G"
inbound = { rate = "1000M" }
#! 6:20: port "up": `inbound.rate` 1G is not below `link` 1G; write less than `link`, or remove
#!   `rate` for 95 % of it
@up 100
link = "1G"
inbound = {}
egress = "fair-share"
#! none
"#;

#[test]
fn only_an_uplink_with_a_rate_is_shared_inbound() {
    appended(INBOUND);
}

const CAPACITY: &str = r#"
[worker]
capacity = "0"
#! 2:12: [worker]: `capacity` 0 is out of range; write at least 1M, or remove `capacity` for the
#!   whole core
[worker]
capacity = 999999
#! 2:12: [worker]: `capacity` 999999 is out of range; write at least 1M, or remove `capacity` for
#!   the whole core
[worker]
capacity = "1M"
#! none
"#;

/// Tests a capacity with which a worker would pause for ever after its first batch.
#[test]
fn a_worker_has_a_capacity() {
    appended(CAPACITY);
}
