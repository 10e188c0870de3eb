//! Cost of a frame on the platform of the C2QoS paper.
//!
//! # Problem
//!
//! Figures that are simulated at the paper's scale need the cycles per frame of the paper's switch
//! (OVS-DPDK 2.9 on one core of 2.2 GHz). The C2QoS paper prints only a few costs in cycles per
//! frame.
//!
//! # Source
//!
//! The sources of the costs are C2QoS §III, §V and §VI-A. From C2QoS §II, the cost table uses only
//! the loads that one core can forward. The cost table does not use the losses that §II prints,
//! because the simulated figures are compared with these losses.
//!
//! # Approach
//!
//! The cost table in this module has the cycles that a frame costs in each stage of the switch.
//! Except for one number, every cost in the table follows from numbers that the C2QoS paper prints.
//! If the printed numbers permit a range of costs, the table has the middle of the range.
//!
//! # Quantities
//!
//! All costs are in cycles per frame, for one VM, one I/O core, and memory on the core's NUMA node.
//! C(s) is the total cost of a frame of s bytes, as the C2QoS paper names sizes ("1024 byte").
//!
//! | Cell | Value | Follows from |
//! |---|---|---|
//! | total cost C(1024) of a frame of one flow, in cycles | 1016 | note 1 |
//! | total cost C(64) of a frame of one flow, in cycles | 632 | note 2 |
//! | cost of ingress per byte, in cycles | 0.4 | note 3 |
//! | cost of ingress of a 64 B frame, in cycles | 383 | note 4 |
//! | cost of classification of a frame of one flow, in cycles | 171 | note 5 |
//! | cost of classification of a frame of many flows, in cycles | 457 | note 6 |
//! | cost of egress of a frame, in cycles | 79 | note 5 |
//! | cost factor of memory on another NUMA node | 1.4 | §III-C |
//! | cost factor of 4 VMs | 1.14 on one node, 1.07 on several | §III-C, see [`vms_factor`] |
//! | cost factor of 2 I/O cores | 1.47 | §III-C |
//!
//! 1. Frames of 1024 B at 4 Gbit/s, with 4 VMs on node 1, cost 0.792 G cycles/s (§VI-A). A 1024 B
//!    frame costs 1622 cycles, or 1016 cycles after division by 1.4 × 1.14 (§III-C).
//! 2. The cost C(64) of a 64 B frame is the middle of 565 and 701 cycles. The lower end of the
//!    range for C(64) follows from §VI-A: two VMs that send 64 B frames take 20 % of the core each.
//!    Each VM with 64 B frames gets no more batches than VM1, and VM1 sends at most the 488,281
//!    frames/s that it bought. The upper end of the range for C(64) follows from Fig. 1 (c), where
//!    the core can forward 3.0 M frames/s of at least 64 B.
//! 3. The cost per byte is (C(1024) - C(64)) / 960, because only ingress copies bytes (§III-B).
//! 4. Ingress of 1500 B costs "more than twice" as much as ingress of 64 B (§III-B). The cost table
//!    assumes that ingress of 1500 B costs 2.5 times as much as ingress of 64 B (the middle of 2
//!    and 3).
//! 5. Of the cost C(64) of a 64 B frame, classification and egress together take 250 cycles. The
//!    C2QoS paper does not print the costs of classification and egress separately. In our
//!    measurement of OVS-DPDK 3.1, a 64 B frame took 343 cycles with one flow, and 250 cycles with
//!    rules that need no look-up. In the measurement, the look-up took 27 % of OVS-DPDK's cycles,
//!    so the cost table assumes that classification is 27 % of C(64). Egress takes the remaining 79
//!    cycles of C(64): it writes descriptors and copies no payload.
//! 6. Classification of many flows costs "1.67 times more than that in the best case" (§III-B).
//!
//! # Meaning of "1.67 times more"
//!
//! For other costs, the C2QoS paper prints "times more" next to a coefficient (1.14, 1.47), and
//! means a multiplication by the coefficient. In plain English, "1.67 times more" means a factor of
//! 2.67. The C2QoS paper prints no coefficient for the cost of many flows.
//!
//! With a factor of 1.67 for look-ups of many flows, VM1's 0.6 M frames/s would need cycles for 0.4
//! M more single-flow look-ups per second. VM2, which sends 2.4 M frames/s, loses the cycles that
//! VM1 needs in addition. Even if look-ups took half of all cycles, a factor of 1.67 would cost VM2
//! only 8 %, but Fig. 1 (c) shows 16 %. The table uses the factor 2.67 for classification of many
//! flows ([`CLASSIFICATION_MULTIPLE`]).
//!
//! Only the cost of many flows was fitted to an outcome, so figures with many flows are calibrated
//! ([`TOLD`]). Figures with many flows also show the results with a factor of 1.67,
//! [`CLASSIFICATION_IF_A_FACTOR`]. According to §III-B, the cost ratio of many flows to one flow
//! depends on the classification rules.
//!
//! # Checks
//!
//! The cost table also agrees with printed numbers that were not used to derive the table:
//!
//! - Frames of 64 B at 512 Mbit/s cost more cycles than frames of 1518 B at 2.4 Gbit/s (§II-A).
//! - One core can forward 2 + 8 Gbit/s of 512 B frames (Fig. 1 (a)).
//! - Frames of 1024 B at 1 Gbit/s cost 0.198 G cycles/s (§VI-A).
//! - A batch that takes 41,000 tokens from a VM (§IV-B) can be 32 frames of a common size.
//!
//! [`statements`] compares given costs with the printed numbers. A test compares the costs of the
//! table with the printed numbers. `c2qos-fig5` compares the costs from the worker's counters
//! ([`super::paper_counters`]).
//!
//! # Departures
//!
//! The C2QoS paper does not print the fixed cost of a batch, so the costs in the table are valid
//! for full batches.

/// Cycles per second of the C2QoS paper's core (Intel Xeon E5-4603 v2).
pub const HZ: u64 = 2_200_000_000;
/// Frame sizes of §III-D, in bytes.
pub const SIZES: [u32; 6] = [64, 128, 256, 512, 1024, 1500];

/// Cost of ingress in cycles per frame, in addition to the cost per byte.
pub const INGRESS_FRAME: f64 = 357.0;
/// Additional cost of ingress in cycles per byte.
pub const INGRESS_BYTE: f64 = 0.4;
/// Cost of classification in cycles per frame, with one flow.
pub const CLASSIFICATION_SINGLE: f64 = 171.0;
/// Cost of classification in cycles per frame, with many flows: 2.67 times the cost with one flow.
pub const CLASSIFICATION_MULTIPLE: f64 = 457.0;
/// Cost of classification in cycles per frame, with many flows, if "1.67 times more" means a factor
/// of 1.67.
pub const CLASSIFICATION_IF_A_FACTOR: f64 = 286.0;
/// The calibrated parameter of figures with many flows, and the result of the C2QoS paper to which
/// the parameter was fitted. A figure with many flows adds the names of the other interpretations
/// that the figure shows.
pub const TOLD: [&str; 2] =
    ["look-ups of many flows cost 2.67 times those of one flow", "VM2's loss in Fig. 1 (c)"];
/// Cost of egress in cycles per frame.
pub const EGRESS_FRAME: f64 = 79.0;

/// Factor of all costs if the VMs' memory is on another NUMA node than the I/O core.
pub const REMOTE_NODE: f64 = 1.4;
/// Factor of all costs with two I/O cores instead of one.
pub const TWO_CORES: f64 = 1.47;

/// Whether a VM sends few or many flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flows {
    /// One flow, or so few flows that they fit into the exact-match cache.
    Single,
    /// The VM sends more flows than the exact-match cache holds.
    Multiple,
}

/// Whether the VMs' memory is on one NUMA node or on several NUMA nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    OneNode,
    /// The VMs are distributed over all NUMA nodes.
    SeveralNodes,
}

/// Cycles per frame in each stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stages {
    pub ingress: f64,
    pub classification: f64,
    pub egress: f64,
}

impl Stages {
    /// Returns the total cost C = C_ingress + C_classification + C_egress (Eq. 1 of the C2QoS
    /// paper).
    #[must_use]
    pub fn total(self) -> f64 {
        self.ingress + self.classification + self.egress
    }
}

/// Cost of a frame in cycles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Frame {
    /// Cycles of a frame in all stages together.
    pub total: f64,
    pub stages: Stages,
}

/// A deployment for which the C2QoS paper prints the cost of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// One VM, with memory on the I/O core's NUMA node.
    Alone,
    /// Two VMs, with memory on the I/O core's NUMA node (§II-B).
    TwoVms,
    /// Four VMs on NUMA node 1 (§VI-A).
    Section6a,
}

impl Host {
    /// Returns the factor by which a deployment multiplies all costs of a frame.
    #[must_use]
    pub fn factor(self) -> f64 {
        match self {
            Self::Alone => 1.0,
            Self::TwoVms => vms_factor(2, Placement::OneNode),
            Self::Section6a => section_6a_factor(),
        }
    }
}

/// A load for which the C2QoS paper prints a number: bytes per frame, flows, host, and frames per
/// second.
pub type Stated = (u16, Flows, Host, f64);

/// Returns the cost of a frame of the load, according to the cost table.
#[must_use]
pub fn by_table(&(size, flows, host, _): &Stated) -> Frame {
    let Stages { ingress, classification, egress } = cost(size.into(), flows);
    let [ingress, classification, egress] =
        [ingress, classification, egress].map(|cycles| cycles * host.factor());
    let stages = Stages { ingress, classification, egress };
    Frame { total: stages.total(), stages }
}

/// Returns the cost of a frame of `size` bytes in cycles, according to the cost table.
#[must_use]
pub fn cost(size: u32, flows: Flows) -> Stages {
    cost_if(size, flows, CLASSIFICATION_MULTIPLE)
}

/// Returns the cost of a frame in cycles, if classification of many flows costs `many_flows`
/// cycles.
#[must_use]
pub fn cost_if(size: u32, flows: Flows, many_flows: f64) -> Stages {
    let classification = match flows {
        Flows::Single => CLASSIFICATION_SINGLE,
        Flows::Multiple => many_flows,
    };
    let ingress = INGRESS_FRAME + INGRESS_BYTE * f64::from(size);
    Stages { ingress, classification, egress: EGRESS_FRAME }
}

/// Returns the cost factor of `vms` VMs. The C2QoS paper prints the factors of 1 and 4 VMs.
/// According to the C2QoS paper, the factor for the number of VMs grows quickly up to 8 VMs and is
/// constant from 10 VMs on. The factor is linear up to 8 VMs, through the printed factors of 1 and
/// 4 VMs. Above 8 VMs the factor has half the slope up to 10 VMs, and is constant for more VMs.
#[must_use]
pub fn vms_factor(vms: u32, placement: Placement) -> f64 {
    let slope = match placement {
        Placement::OneNode => 0.14 / 3.0,
        Placement::SeveralNodes => 0.07 / 3.0,
    };
    let steep = vms.clamp(1, 8) - 1;
    let flat = vms.clamp(8, 10) - 8;
    1.0 + slope * (f64::from(steep) + 0.5 * f64::from(flat))
}

/// Returns the cost factor of `cores` I/O cores. The C2QoS paper says nothing about more than two
/// cores, so more cores get the factor of two cores.
#[must_use]
pub fn cores_factor(cores: u32) -> f64 {
    if cores > 1 { TWO_CORES } else { 1.0 }
}

/// Returns the frame rate of `bits_per_second` in frames of `size` bytes, in frames per second.
#[must_use]
pub fn frames_per_second(bits_per_second: f64, size: u32) -> f64 {
    bits_per_second / (8.0 * f64::from(size))
}

/// Returns the cost factor of §VI-A: four VMs on node 1, and one I/O core.
#[must_use]
pub fn section_6a_factor() -> f64 {
    REMOTE_NODE * vms_factor(4, Placement::OneNode)
}

/// A statement of the C2QoS paper, the value according to given costs, and the band of values that
/// agree with the paper.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Statement {
    /// Name of the claim that checks the statement.
    pub id: &'static str,
    /// Text of the C2QoS paper's statement, with the section.
    pub what: &'static str,
    /// The number that the C2QoS paper prints. `None` if the C2QoS paper prints no number.
    pub published: Option<f64>,
    /// Value of the statement's quantity according to the given cost function.
    pub found: f64,
    pub unit: &'static str,
    /// Lowest value that agrees with the C2QoS paper. `None` if the C2QoS paper's statement sets no
    /// lower limit.
    pub low: Option<f64>,
    /// Highest value that agrees with the C2QoS paper. `None` if the C2QoS paper's statement sets
    /// no upper limit.
    pub high: Option<f64>,
}

impl Statement {
    fn new(id: &'static str, what: &'static str, unit: &'static str, found: f64) -> Self {
        Self { id, what, published: None, found, unit, low: None, high: None }
    }

    fn published(self, value: f64) -> Self {
        Self { published: Some(value), ..self }
    }

    fn at_least(self, low: f64) -> Self {
        Self { low: Some(low), ..self }
    }

    fn at_most(self, high: f64) -> Self {
        Self { high: Some(high), ..self }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a frequency")]
const HZ_F64: f64 = HZ as f64;

/// Sending rate of the C2QoS paper's measurements in §III, in frames per second.
pub const RATE: f64 = 1e5;

/// Returns the C2QoS paper's statements about costs, with the values according to `cost`. The
/// caller's function `cost` returns the cost of a frame of a given load.
///
/// # Errors
/// Returns an error if the function `cost` fails.
pub fn statements<E>(
    mut cost: impl FnMut(&Stated) -> Result<Frame, E>,
) -> Result<Vec<Statement>, E> {
    let mut all = what_it_was_made_from(&mut cost)?;
    all.extend(what_it_was_not_made_from(&mut cost)?);
    Ok(all)
}

/// Returns the C2QoS paper's statements that were used to derive the cost table.
fn what_it_was_made_from<E>(
    cost: &mut impl FnMut(&Stated) -> Result<Frame, E>,
) -> Result<Vec<Statement>, E> {
    let rate = frames_per_second(4e9, 1024);
    let gcps = rate * cost(&(1024, Flows::Single, Host::Section6a, rate))?.total / 1e9;
    let floods = rate * cost(&(64, Flows::Single, Host::Section6a, rate))?.total / HZ_F64;
    let fig1 = 3.0e6 * cost(&(64, Flows::Single, Host::TwoVms, RATE))?.total / HZ_F64;
    let short = cost(&(64, Flows::Single, Host::Alone, RATE))?.stages;
    let long = cost(&(1500, Flows::Single, Host::Alone, RATE))?.stages;
    let many = cost(&(64, Flows::Multiple, Host::Alone, RATE))?.stages;
    let what = "cost of 4 Gbit/s of 1024 B, one flow, 4 VMs on node 1 (§VI-A)";
    let sold = Statement::new("cycles_4g_1024_gcps", what, "Gcycles/s", gcps);
    let what = "64 B frames, as many as VM1 may send, take at least 20 % of the core (§VI-A)";
    let flood = Statement::new("fig10_64b_core_share", what, "of the core", floods);
    let what = "0.6 + 2.4 M frames/s of 64 B or more fit one core (Fig. 1 (c))";
    let pps = Statement::new("fig1_pps_core_share", what, "of the core", fig1);
    let what = "ingress of 1500 B is more than twice that of 64 B (§III-B)";
    let ratio = long.ingress / short.ingress;
    let ingress = Statement::new("ingress_1500_over_64", what, "ratio", ratio);
    let what = "classification of many flows costs 1.67 times more than of one (§III-B)";
    let ratio = many.classification / short.classification;
    let flows = Statement::new("classification_multiple_over_single", what, "ratio", ratio);
    Ok(vec![
        sold.published(0.792).at_least(0.7915).at_most(0.7925),
        flood.published(0.2).at_least(0.2),
        pps.at_most(1.0),
        ingress.published(2.0).at_least(2.0).at_most(3.0),
        flows.published(1.67).at_least(1.66).at_most(2.68),
    ])
}

/// Returns the C2QoS paper's statements that were not used to derive the cost table.
fn what_it_was_not_made_from<E>(
    cost: &mut impl FnMut(&Stated) -> Result<Frame, E>,
) -> Result<Vec<Statement>, E> {
    let rate = frames_per_second(1e9, 1024);
    let gcps = rate * cost(&(1024, Flows::Single, Host::Section6a, rate))?.total / 1e9;
    let fig1 = cost(&(512, Flows::Single, Host::TwoVms, RATE))?.total;
    let fig1 = frames_per_second(10e9, 512) * fig1 / HZ_F64;
    let mut alone = |size| Ok(cost(&(size, Flows::Single, Host::Alone, RATE))?.total);
    let google =
        frames_per_second(512e6, 64) * alone(64)? / (frames_per_second(2.4e9, 1518) * alone(1518)?);
    let batch = 41_000.0 / (32.0 * alone(1024)?);
    let what = "cost of 1 Gbit/s of 1024 B, one flow, 4 VMs on node 1 (§VI-A)";
    let sold = Statement::new("cycles_1g_1024_gcps", what, "Gcycles/s", gcps);
    let what = "2 + 8 Gbit/s of 512 B fit one core (Fig. 1 (a))";
    let bps = Statement::new("fig1_bps_core_share", what, "of the core", fig1);
    let what = "64 B at 512 Mbit/s cost more than 1518 B at 2.4 Gbit/s (§II-A)";
    let google = Statement::new("google_64b_over_1518b", what, "ratio", google);
    let what =
        "41,000 tokens for a batch (§IV-B): 32 frames of 1024 B, from alone to 4 VMs on node 1";
    let batch = Statement::new("batch_41k_over_1024b", what, "ratio", batch);
    Ok(vec![
        sold.published(0.198).at_least(0.1975).at_most(0.1985),
        bps.at_most(1.0),
        google.published(1.0).at_least(1.0),
        batch.at_least(1.0).at_most(section_6a_factor()),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_agrees_with_all_that_the_paper_states() {
        let by_table = |stated: &Stated| Ok::<_, std::convert::Infallible>(by_table(stated));
        for s in statements(by_table).unwrap() {
            let low = s.low.is_none_or(|low| s.found >= low);
            let high = s.high.is_none_or(|high| s.found <= high);
            assert!(low && high, "{}: {} is not in its band ({})", s.id, s.found, s.what);
        }
    }

    #[test]
    fn the_middles_are_those_of_the_module_doc() {
        let per_frame = 0.792e9 / frames_per_second(4e9, 1024);
        assert!((per_frame - 1622.0).abs() < 0.1, "{per_frame}");
        let alone = per_frame / section_6a_factor();
        assert!((alone - cost(1024, Flows::Single).total()).abs() < 1.0, "{alone}");
        let least = 0.2 * 2.2e9 / frames_per_second(4e9, 1024) / section_6a_factor();
        let most = 2.2e9 / 3.0e6 / vms_factor(2, Placement::OneNode);
        let middle = f64::midpoint(least, most);
        assert!((middle - cost(64, Flows::Single).total()).abs() < 1.0, "{middle}");
    }

    #[test]
    fn the_coefficients_are_the_printed_ones() {
        assert!((vms_factor(1, Placement::OneNode) - 1.0).abs() < 1e-12);
        assert!((vms_factor(4, Placement::OneNode) - 1.14).abs() < 1e-12);
        assert!((vms_factor(4, Placement::SeveralNodes) - 1.07).abs() < 1e-12);
        let ten = vms_factor(10, Placement::OneNode);
        assert!((vms_factor(28, Placement::OneNode) - ten).abs() < 1e-12);
        // §III-C: 4 VMs on node 1 and two I/O cores.
        let product = REMOTE_NODE * vms_factor(4, Placement::OneNode) * cores_factor(2);
        assert!((product - 1.4 * 1.14 * 1.47).abs() < 1e-12);
    }

    #[test]
    fn only_ingress_knows_a_frames_size() {
        let (short, long) = (cost(64, Flows::Single), cost(1500, Flows::Single));
        assert!(long.ingress > 2.0 * short.ingress);
        assert!((long.classification - short.classification).abs() < 1e-12);
        assert!((long.egress - short.egress).abs() < 1e-12);
    }
}
