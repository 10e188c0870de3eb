//! Parses the output of `ovs-appctl dpif-netdev/pmd-perf-show`.
//!
//! # Source
//!
//! The command `pmd-perf-show` is documented in `ovs-vswitchd(8)`, section PMD COMMANDS. The
//! command `pmd-stats-show` is not used, because OVS 4.0 removes it.
//!
//! # Approach
//!
//! OVS prints busy cycles only in two rounded forms: as whole cycles per packet, and as a
//! percentage of used cycles with one decimal. Each rounded form of the busy cycles leaves a range
//! of possible exact values. The module returns the middle of the values that are consistent with
//! both printed numbers. Counters are read before and after a measured window. Counters are not
//! cleared, because the PMD thread executes a request to clear them only some time later.

use anyhow::Context as _;

/// Counters of one PMD thread since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PmdReading {
    /// Number of packets that the PMD thread received.
    pub packets: u64,
    /// Cycles of the PMD thread's iterations that received packets.
    pub busy_cycles: u64,
    pub sent: u64,
    /// Number of batches of sent packets.
    pub batches: u64,
    /// Number of packets that matched by OVS's simple match.
    pub simple_match_hits: u64,
    /// Number of packets that matched in the exact-match cache.
    pub emc_hits: u64,
    /// Number of packets that matched in the signature-match cache.
    pub smc_hits: u64,
    /// Number of packets that matched a megaflow.
    pub megaflow_hits: u64,
    /// Number of packets that the PMD thread sent to the slow path.
    pub upcalls: u64,
}

impl PmdReading {
    /// Returns the increase of all counters since `before`.
    pub fn since(&self, before: &Self) -> Self {
        self.and(before, u64::saturating_sub)
    }

    /// Returns the sums of the counters of two PMD threads.
    pub fn with(&self, other: &Self) -> Self {
        self.and(other, u64::saturating_add)
    }

    fn and(&self, other: &Self, of: fn(u64, u64) -> u64) -> Self {
        Self {
            packets: of(self.packets, other.packets),
            busy_cycles: of(self.busy_cycles, other.busy_cycles),
            sent: of(self.sent, other.sent),
            batches: of(self.batches, other.batches),
            simple_match_hits: of(self.simple_match_hits, other.simple_match_hits),
            emc_hits: of(self.emc_hits, other.emc_hits),
            smc_hits: of(self.smc_hits, other.smc_hits),
            megaflow_hits: of(self.megaflow_hits, other.megaflow_hits),
            upcalls: of(self.upcalls, other.upcalls),
        }
    }
}

/// Returns the first number after `label` in OVS's output. The label must be at the start of a
/// line, after optional blanks and a dash.
fn field(text: &str, label: &str) -> Option<f64> {
    let bare = |line: &'_ str| line.trim_start().trim_start_matches("- ").to_lowercase();
    let label = label.to_lowercase();
    let line = text.lines().map(bare).find(|line| line.starts_with(&label))?;
    number(&line[label.len()..])
}

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

/// Returns the busy cycles per packet, which OVS rounds to a whole number.
fn cycles_per_packet(perf: &str) -> Option<f64> {
    let before = perf.split_once(" cycles/pkt")?.0;
    before.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Returns the used cycles, and the percentage of busy cycles, which OVS rounds to one decimal
/// place.
fn used_and_busy_percent(perf: &str) -> Option<(f64, f64)> {
    let busy = perf.lines().find(|line| line.trim_start().starts_with("- busy iterations:"))?;
    Some((field(perf, "Used TSC cycles:")?, number(busy.split_once('(')?.1)?))
}

/// Returns the busy cycles for `packets` packets: the middle of the values that both rounded
/// numbers of `perf` allow.
fn busy_cycles(perf: &str, packets: f64) -> Option<f64> {
    let each = cycles_per_packet(perf)?;
    let (mut least, mut most) = (packets * (each - 0.5), packets * (each + 0.5));
    if let Some((used, percent)) = used_and_busy_percent(perf) {
        let (low, high) = (used * (percent - 0.05) / 100.0, used * (percent + 0.05) / 100.0);
        // While the thread runs, OVS reads the two numbers at different times. If their ranges do
        // not overlap, the cycles per packet count.
        if low <= most && high >= least {
            (least, most) = (least.max(low), most.min(high));
        }
    }
    Some(f64::midpoint(least, most))
}

/// Parses the output of `pmd-perf-show` for one PMD thread.
pub(crate) fn parse(perf: &str) -> anyhow::Result<PmdReading> {
    let packets = field(perf, "Rx packets:")
        .with_context(|| format!("`Rx packets:` is missing in:\n{perf}"))?;
    let hits = |label| field(perf, label).map_or(0, count);
    // Before the first packet, the output has no cycles.
    let busy_cycles = if packets > 0.0 {
        let cycles = busy_cycles(perf, packets);
        count(cycles.with_context(|| format!("`cycles/pkt` is missing in:\n{perf}"))?)
    } else {
        0
    };
    let packets = count(packets);
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
    #[test]
    fn the_answer_is_read() {
        let pmd = parse(PERF).unwrap();
        assert_eq!(pmd.packets, 6_237_536);
        assert_eq!((pmd.sent, pmd.batches), (6_237_536, 194_923));
        assert_eq!((pmd.simple_match_hits, pmd.emc_hits, pmd.smc_hits), (3, 6_237_000, 7));
        assert_eq!((pmd.megaflow_hits, pmd.upcalls), (525, 1));
        assert_eq!(pmd.since(&pmd), PmdReading::default());
        assert_eq!(pmd.since(&PmdReading::default()), pmd);
        assert_eq!(pmd.with(&pmd).since(&pmd), pmd);
    }

    /// When this output was recorded, `pmd-stats-show` reported the exact number: 3006492352 busy
    /// cycles.
    #[test]
    fn busy_cycles_are_closer_than_either_rounded_number() {
        let busy = parse(PERF).unwrap().busy_cycles;
        assert!(busy.abs_diff(3_006_492_352) < 6_237_536 / 4, "{busy}");
        // The cycles per packet are higher than the percentage permits, so the ranges do not
        // overlap.
        let apart = PERF.replace("482 cycles/pkt", "999 cycles/pkt");
        assert_eq!(parse(&apart).unwrap().busy_cycles, 6_237_536 * 999);
        let alone = PERF.replace("- busy iterations", "- other iterations");
        assert_eq!(parse(&alone).unwrap().busy_cycles, 6_237_536 * 482);
    }

    /// Output of `pmd-perf-show` in OVS 3.2 or later, with lines about sleep.
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
    fn a_later_ovs_is_read_too() {
        let pmd = parse(LATER).unwrap();
        assert_eq!((pmd.packets, pmd.simple_match_hits), (2_958_981, 2_958_981));
        assert!(pmd.busy_cycles.abs_diff(2_958_981 * 597) <= 2_958_981 / 2, "{pmd:?}");
    }

    #[test]
    fn a_thread_without_packets_has_no_cycles_and_garbage_is_refused() {
        let perf = "  Rx packets:                    0\n  Tx packets:  0\n";
        assert_eq!(parse(perf).unwrap(), PmdReading::default());
        for garbage in ["no such thing", "  Rx packets:  7\n"] {
            assert!(parse(garbage).unwrap_err().to_string().contains("is missing"), "{garbage}");
        }
    }
}
