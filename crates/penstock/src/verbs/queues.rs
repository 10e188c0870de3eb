//! `penstock stats --queues` prints the queues of ports that sort frames by DSCP.

use penstock_control::api::PortStats;

use crate::table::{Table, bytes, count};

/// Returns the queues of all ports, with their counters since the daemon's start.
pub fn table(ports: &[PortStats]) -> String {
    let mut table =
        Table::new("PORT|>QUEUE|>WEIGHT|DSCP|>FRAMES|>BYTES|>DROPS|>BACKLOG|>BACKLOG BYTES");
    for (port, queue) in ports.iter().flat_map(|p| p.queues.iter().map(move |q| (p, q))) {
        table.row([
            port.port.clone(),
            queue.queue.to_string(),
            queue.weight.to_string(),
            // Queue 0 has all code points that are not mapped.
            if queue.queue == 0 { "others".to_owned() } else { list(&queue.dscps) },
            count(queue.frames),
            bytes(queue.bytes),
            count(queue.drops),
            count(queue.backlog_frames),
            bytes(queue.backlog_bytes),
        ]);
    }
    table.render_or("no port has egress = \"wfq\"\n")
}

fn list(dscps: &[u32]) -> String {
    if dscps.is_empty() {
        return "-".to_owned();
    }
    dscps.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_control::api::QueueStatus;

    #[test]
    fn each_queue_has_a_line() {
        let queue = |queue, weight, dscps: &[u32], frames| QueueStatus {
            queue,
            weight,
            dscps: dscps.to_vec(),
            frames,
            bytes: 1_000 * frames,
            drops: 7,
            backlog_frames: 2,
            backlog_bytes: 2_000,
            ..QueueStatus::default()
        };
        let queues =
            vec![queue(0, 1, &[0, 1], 5_000), queue(1, 30, &[8, 46], 6), queue(2, 1, &[], 0)];
        let port = PortStats { port: "up".into(), queues, ..PortStats::default() };
        assert_eq!(
            table(&[port]),
            "\
PORT  QUEUE  WEIGHT  DSCP    FRAMES    BYTES  DROPS  BACKLOG  BACKLOG BYTES
up        0       1  others   5,000  5.00 MB      7        2        2.00 kB
up        1      30  8,46         6  6.00 kB      7        2        2.00 kB
up        2       1  -            0      0 B      7        2        2.00 kB
"
        );
        assert_eq!(table(&[]), "no port has egress = \"wfq\"\n");
    }
}
