//! What `ovs-appctl dpif-netdev/pmd-perf-show` and `pmd-stats-show` print.
//!
//! **Source.** `ovs-vswitchd(8)`, section PMD COMMANDS. The first rounds busy cycles to a whole
//! cycle a packet, the second has them in full; packets and hits are the same numbers in both. OVS
//! 4.0 has only the first. **Rule.** The first is asked always, the second where it is known, and
//! both before and after: a request to clear the counters is carried out by the PMD thread, some
//! time later.

use anyhow::Context as _;

/// One PMD thread's counters; they only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PmdReading {
    /// Packets received.
    pub packets: u64,
    /// Cycles of the iterations that received packets.
    pub busy_cycles: u64,
    /// Packets sent.
    pub sent: u64,
    /// Batches of them.
    pub batches: u64,
    /// Packets decided by the port's only rule.
    pub simple_match_hits: u64,
    /// By the exact-match cache.
    pub emc_hits: u64,
    /// By the signature cache.
    pub smc_hits: u64,
    /// By a masked flow.
    pub megaflow_hits: u64,
    /// Packets sent to the slow path.
    pub upcalls: u64,
}

impl PmdReading {
    /// What was added since `before`.
    pub fn since(&self, before: &Self) -> Self {
        let past = |now: u64, then: u64| now.saturating_sub(then);
        Self {
            packets: past(self.packets, before.packets),
            busy_cycles: past(self.busy_cycles, before.busy_cycles),
            sent: past(self.sent, before.sent),
            batches: past(self.batches, before.batches),
            simple_match_hits: past(self.simple_match_hits, before.simple_match_hits),
            emc_hits: past(self.emc_hits, before.emc_hits),
            smc_hits: past(self.smc_hits, before.smc_hits),
            megaflow_hits: past(self.megaflow_hits, before.megaflow_hits),
            upcalls: past(self.upcalls, before.upcalls),
        }
    }
}

/// The first number after `label`, which begins a line but for blanks and a dash.
fn field(text: &str, label: &str) -> Option<f64> {
    let bare = |line: &'_ str| line.trim_start().trim_start_matches("- ").to_lowercase();
    let label = label.to_lowercase();
    let line = text.lines().map(bare).find(|line| line.starts_with(&label))?;
    number(&line[label.len()..])
}

/// The first number in `text`.
fn number(text: &str) -> Option<f64> {
    let from = text.find(|c: char| c.is_ascii_digit())?;
    let rest = &text[from..];
    let to = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    rest[..to].trim_end_matches('.').parse().ok()
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a printed count")]
fn count(value: f64) -> u64 {
    value as u64
}

/// Whether `ovs-appctl` failed because the daemon does not know the command.
pub(crate) fn is_unknown_command(error: &str) -> bool {
    error.contains("is not a valid command")
}

/// Busy cycles a packet, to a whole number, as `pmd-perf-show` says.
fn cycles_per_packet(perf: &str) -> Option<f64> {
    let before = perf.split_once(" cycles/pkt")?.0;
    before.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Reads the answers about one thread; `stats` is `None` where OVS has no such command.
pub(crate) fn parse(perf: &str, stats: Option<&str>) -> anyhow::Result<PmdReading> {
    let needed = |text: &str, label: &'static str| {
        field(text, label).with_context(|| format!("`{label}` is missing in:\n{text}"))
    };
    let packets = count(needed(perf, "Rx packets:")?);
    let hits = |label| field(perf, label).map_or(0, count);
    // The hot iterations' cycles; absent before the first packet.
    let busy_cycles = match stats {
        _ if packets == 0 => 0,
        Some(stats) => count(needed(stats, "processing cycles:")?),
        None => {
            let each = cycles_per_packet(perf)
                .with_context(|| format!("`cycles/pkt` is missing in:\n{perf}"))?;
            packets * count(each)
        }
    };
    Ok(PmdReading {
        packets,
        busy_cycles,
        sent: hits("Tx packets:"),
        batches: hits("Tx batches:"),
        simple_match_hits: hits("Simple Match hits:"),
        emc_hits: hits("EMC hits:"),
        smc_hits: hits("SMC hits:"),
        megaflow_hits: hits("Megaflow hits:"),
        upcalls: hits("Upcalls:"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERF: &str = "
Time: 06:35:10.105
Measurement duration: 1.815 s

pmd thread numa_id 0 core_id 1:

  Iterations:              4931639  (0.37 us/it)
  - Used TSC cycles:    4439009906  ( 99.8 % of total cycles)
  - idle iterations:       4736716  ( 32.3 % of used cycles)
  - busy iterations:        194923  ( 67.7 % of used cycles)
  Rx packets:              6237536  (3437 Kpps, 482 cycles/pkt)
  Datapath passes:         6237536  (1.00 passes/pkt)
  - Simple Match hits:           3  (  0.0 %)
  - EMC hits:              6237000  (100.0 %)
  - SMC hits:                    7  (  0.0 %)
  - Megaflow hits:             525  (  0.0 %, 1.00 subtbl lookups/hit)
  - Upcalls:                     1  (  0.0 %, 0.0 us/upcall)
  - Lost upcalls:                0  (  0.0 %)
  Tx packets:              6237536  (3437 Kpps)
  Tx batches:               194923  (31.50 pkts/batch)
";
    const STATS: &str = "pmd thread numa_id 0 core_id 1:
  packets received: 6237536
  idle cycles: 1777152759 (29.15%)
  processing cycles: 3006492352 (70.85%)
  avg processing cycles per packet: 482.00 (3006492352/6237536)
";

    #[test]
    fn both_answers_are_read() {
        let pmd = parse(PERF, Some(STATS)).unwrap();
        assert_eq!((pmd.packets, pmd.busy_cycles), (6_237_536, 3_006_492_352));
        assert_eq!((pmd.sent, pmd.batches), (6_237_536, 194_923));
        assert_eq!((pmd.simple_match_hits, pmd.emc_hits, pmd.smc_hits), (3, 6_237_000, 7));
        assert_eq!((pmd.megaflow_hits, pmd.upcalls), (525, 1));
        assert_eq!(pmd.since(&pmd), PmdReading::default());
        assert_eq!(pmd.since(&PmdReading::default()), pmd);
    }

    /// In the form of OVS 3.2 and later, with the lines on sleep.
    const LATER: &str = "
Time: 14:02:31.870
Measurement duration: 2.004 s

pmd thread numa_id 0 core_id 1:

  Iterations:              5131020  (0.39 us/it)
  - Used TSC cycles:    4007990211  (100.0 % of total cycles)
  - idle iterations:       5038551  ( 55.9 % of used cycles)
  - busy iterations:         92469  ( 44.1 % of used cycles)
  - sleep iterations:            0  (  0.0 % of iterations)
  Sleep time (us):               0  (  0 us/iteration avg.)
  Rx packets:              2958981  (1477 Kpps, 597 cycles/pkt)
  Datapath passes:         2958981  (1.00 passes/pkt)
  - PHWOL hits:                  0  (  0.0 %)
  - MFEX Opt hits:               0  (  0.0 %)
  - Simple Match hits:     2958981  (100.0 %)
  - EMC hits:                    0  (  0.0 %)
  - SMC hits:                    0  (  0.0 %)
  - Megaflow hits:               0  (  0.0 %, 0.00 subtbl lookups/hit)
  - Upcalls:                     0  (  0.0 %, 0.0 us/upcall)
  - Lost upcalls:                0  (  0.0 %)
  Tx packets:              2958981  (1477 Kpps)
  Tx batches:                92469  (32.00 pkts/batch)
";

    #[test]
    fn an_ovs_without_pmd_stats_show_is_read_too() {
        let pmd = parse(LATER, None).unwrap();
        assert_eq!((pmd.packets, pmd.simple_match_hits), (2_958_981, 2_958_981));
        assert_eq!(pmd.busy_cycles, 2_958_981 * 597);
        // Beside the whole number: less than a cycle a packet.
        let (whole, rounded) = (parse(PERF, Some(STATS)).unwrap(), parse(PERF, None).unwrap());
        assert!(whole.busy_cycles.abs_diff(rounded.busy_cycles) < whole.packets);
        assert_eq!(PmdReading { busy_cycles: whole.busy_cycles, ..rounded }, whole);
        assert!(parse("  Rx packets:  7\n", None).unwrap_err().to_string().contains("cycles/pkt"));
        let refused = "ovs-appctl -t x dpif-netdev/pmd-stats-show: exit status: 2: \
                       \"dpif-netdev/pmd-stats-show\" is not a valid command (use \
                       \"list-commands\" to see a list of valid commands)";
        assert!(is_unknown_command(refused));
        assert!(!is_unknown_command("cannot connect to \"/run/vswitchd.ctl\""));
    }

    #[test]
    fn a_thread_without_packets_has_no_cycles_and_garbage_is_refused() {
        let perf = "  Rx packets:                    0\n  Tx packets:  0\n";
        let pmd = parse(perf, Some("  packets received: 0\n")).unwrap();
        assert_eq!(pmd, PmdReading::default());
        assert!(parse("no such thing", Some(STATS)).is_err());
        assert!(
            parse(PERF, Some("nothing")).unwrap_err().to_string().contains("processing cycles")
        );
    }
}
