//! Cost of a frame on the platform of the C2QoS paper.
//!
//! # Problem
//!
//! Figures that are simulated at the paper's scale need the cycles of its switch (OVS-DPDK 2.9 on
//! one core of 2.2 GHz). The paper prints no table, only a few numbers.
//!
//! # Source
//!
//! C2QoS §III, §V and §VI-A. Of §II-C only the limits that fitted the core are used. The losses are
//! not used, because the figures are compared with them.
//!
//! # Approach
//!
//! Every cell but one follows from stated numbers. If the numbers leave a range, the cell follows
//! from the middle of that range.
//!
//! # Quantities
//!
//! The unit is cycles of one frame, with one VM, one I/O core, and memory on the core's own node.
//! `s` is the bytes of a frame as the paper names them ("1024 byte").
//!
//! | Cell | Value | Follows from |
//! |---|---|---|
//! | C(1024), one flow | 1016 | (1) |
//! | C(64), one flow | 632 | (2) |
//! | per byte | 0.4, ingress only | (3) |
//! | ingress(64) | 383 | (4) |
//! | classification, one flow | 171 | (5) |
//! | classification, many flows | 457 | (6) |
//! | egress | 79 | (5) |
//! | × memory on another node | 1.4 | §III-C |
//! | × 4 VMs | 1.14 on one node, 1.07 on several | §III-C; between and beyond: [`vms_factor`] |
//! | × 2 I/O cores | 1.47 | §III-C |
//!
//! 1. 4 Gbit/s of 1024 B, 4 VMs on node 1, cost 0.792 G cycles/s (§VI-A): 1622 a frame. Divided by
//!    1.4 × 1.14 (§III-C) it is 1016.
//! 2. The cell is the middle of 565 and 701. It is at least 565, because two VMs with 64 B take 20
//!    % of the core each (§VI-A), in no more batches than VM1. VM1 has at most the 488,281 frames/s
//!    that it bought. It is at most 701, because the 3.0 M frames/s of Fig. 1 (c) fit the core, and
//!    no frame is shorter.
//! 3. (C(1024) - C(64)) / 960. Only ingress copies bytes (§III-B).
//! 4. Ingress of 1500 B is "more than twice" that of 64 B (§III-B). The cell is the middle of 2 to
//!    3 times.
//! 5. Classification and egress together are the other 250. The paper does not print their parts.
//!    We measured OVS-DPDK 3.1 beside our switch. There, looking up one flow is 27 % of a 64 B
//!    frame: 343 cycles, against 250 with rules that need no look-up. So classification is 27 % of
//!    C(64). Egress, which writes descriptors and copies nothing, is the rest.
//! 6. "1.67 times more than that in the best case" (§III-B); see below.
//!
//! # Meaning of "1.67 times more"
//!
//! Where the paper prints a coefficient beside this phrase (1.14, 1.47), the phrase means the
//! factor. In plain English it means 2.67 times. The paper prints no coefficient beside the 1.67.
//!
//! With a factor of 1.67, VM1's 0.6 M frames/s of many flows take at most 0.4 M frames' worth of
//! look-up from VM2's 2.4 M. Even if look-up were half of all cycles, VM2 would lose 8 %, but Fig.
//! 1 (c) has 16. So the table uses 2.67 ([`CLASSIFICATION_MULTIPLE`]).
//!
//! This cell alone was chosen by an outcome, so figures with many flows are calibrated ([`TOLD`]).
//! They also show the result of the other reading's cell, [`CLASSIFICATION_IF_A_FACTOR`]. §III-B
//! itself says that the ratio depends on the rules.
//!
//! # Checks
//!
//! The table is checked against numbers that it does not use:
//!
//! - 64 B at 512 Mbit/s cost more than 1518 B at 2.4 Gbit/s (§II-A).
//! - 2 + 8 Gbit/s of 512 B fit one core (Fig. 1 (a)).
//! - 1 Gbit/s costs 0.198 G cycles/s (§VI-A).
//! - A batch that takes 41,000 tokens from a VM (§IV-B) is one of 32 frames of a common size.
//!
//! [`statements`] computes all of them from any costs. A test takes the costs from the table.
//! `c2qos-fig5` takes them from the worker's counters ([`super::paper_counters`]).
//!
//! # Departures
//!
//! The paper does not state the cycles that a batch costs regardless of its number of frames. The
//! cells are those of full batches.
//!
//! # Cost
//!
//! The computation takes negligible time.

/// Cycles a second of the paper's core (Intel Xeon E5-4603 v2).
pub const HZ: u64 = 2_200_000_000;
/// The sizes of §III-D, in bytes.
pub const SIZES: [u32; 6] = [64, 128, 256, 512, 1024, 1500];

/// Ingress: cycles a frame.
pub const INGRESS_FRAME: f64 = 357.0;
/// Ingress: cycles a byte.
pub const INGRESS_BYTE: f64 = 0.4;
/// Classification: cycles a frame of one flow.
pub const CLASSIFICATION_SINGLE: f64 = 171.0;
/// Classification: cycles a frame of many flows, 2.67 times those of one flow.
pub const CLASSIFICATION_MULTIPLE: f64 = 457.0;
/// Classification: cycles a frame of many flows if "1.67 times more" is the factor.
pub const CLASSIFICATION_IF_A_FACTOR: f64 = 286.0;
/// Note of a figure with many flows: the calibrated parameter, and the result it was fitted to.
/// Each figure adds the other reading that it shows.
pub const TOLD: [&str; 2] =
    ["look-ups of many flows cost 2.67 times one flow's", "what VM2 loses in Fig. 1 (c)"];
/// Egress: cycles a frame.
pub const EGRESS_FRAME: f64 = 79.0;

/// Factor of all stages if memory is on another NUMA node than the I/O core.
pub const REMOTE_NODE: f64 = 1.4;
/// Factor of all stages with two I/O cores instead of one.
pub const TWO_CORES: f64 = 1.47;

/// How many flows a VM sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flows {
    /// One, or so few that the exact-match cache holds them.
    Single,
    /// More than the cache holds.
    Multiple,
}

/// Where the VMs' memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    OneNode,
    /// The VMs are dealt out over the nodes.
    SeveralNodes,
}

/// Cycles of one frame by stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stages {
    pub ingress: f64,
    pub classification: f64,
    pub egress: f64,
}

impl Stages {
    /// C = C_ingress + C_classification + C_egress (Eq. 1).
    #[must_use]
    pub fn total(self) -> f64 {
        self.ingress + self.classification + self.egress
    }
}

/// Cost of a frame on some host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Frame {
    /// Cycles of all stages together.
    pub total: f64,
    pub stages: Stages,
}

/// A deployment for which the paper states a frame's cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// One VM, with memory on the core's node.
    Alone,
    /// Two VMs, with memory on the core's node (§II-B).
    TwoVms,
    /// Four VMs on node 1 (§VI-A).
    Section6a,
}

impl Host {
    /// Factor by which all costs are multiplied.
    #[must_use]
    pub fn factor(self) -> f64 {
        match self {
            Self::Alone => 1.0,
            Self::TwoVms => vms_factor(2, Placement::OneNode),
            Self::Section6a => section_6a_factor(),
        }
    }
}

/// A stated load: bytes of a frame, flows, host, and frames a second.
pub type Stated = (u16, Flows, Host, f64);

/// Cost of a frame of a stated load, by the table.
#[must_use]
pub fn by_table(&(size, flows, host, _): &Stated) -> Frame {
    let Stages { ingress, classification, egress } = cost(size.into(), flows);
    let [ingress, classification, egress] =
        [ingress, classification, egress].map(|cycles| cycles * host.factor());
    let stages = Stages { ingress, classification, egress };
    Frame { total: stages.total(), stages }
}

/// Cycles of a frame of `size` bytes by the table.
#[must_use]
pub fn cost(size: u32, flows: Flows) -> Stages {
    cost_if(size, flows, CLASSIFICATION_MULTIPLE)
}

/// Cycles of a frame if classification costs `many_flows` for many flows.
#[must_use]
pub fn cost_if(size: u32, flows: Flows, many_flows: f64) -> Stages {
    let classification = match flows {
        Flows::Single => CLASSIFICATION_SINGLE,
        Flows::Multiple => many_flows,
    };
    let ingress = INGRESS_FRAME + INGRESS_BYTE * f64::from(size);
    Stages { ingress, classification, egress: EGRESS_FRAME }
}

/// The factor of `vms` VMs. The paper states the factors of 1 and 4 VMs, and says that the factor
/// grows much below 8 VMs and stays constant from 10 on. So the factor is linear through the stated
/// numbers up to 8, has half the slope up to 10, and is then constant.
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

/// The factor of one or two I/O cores. The paper says nothing about more.
#[must_use]
pub fn cores_factor(cores: u32) -> f64 {
    if cores > 1 { TWO_CORES } else { 1.0 }
}

/// Frames a second of `bits_per_second` in frames of `size` bytes.
#[must_use]
pub fn frames_per_second(bits_per_second: f64, size: u32) -> f64 {
    bits_per_second / (8.0 * f64::from(size))
}

/// The factor of §VI-A: four VMs on node 1, one I/O core.
#[must_use]
pub fn section_6a_factor() -> f64 {
    REMOTE_NODE * vms_factor(4, Placement::OneNode)
}

/// A statement of the paper, the value that costs give for it, and the band in which the two agree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Statement {
    /// Name of the claim.
    pub id: &'static str,
    /// What the paper states, and where.
    pub what: &'static str,
    /// The printed number, if one is printed.
    pub published: Option<f64>,
    /// The number that the costs give.
    pub found: f64,
    pub unit: &'static str,
    /// The lowest value that agrees.
    pub low: Option<f64>,
    /// The highest value that agrees.
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

/// The core's cycles a second, for arithmetic.
#[expect(clippy::cast_precision_loss, reason = "a frequency")]
const HZ_F64: f64 = HZ as f64;

/// Frames a second of §III's measurements.
pub const RATE: f64 = 1e5;

/// Returns all numbers of the paper that costs can be compared with. `cost` returns the cost of a
/// frame of a load.
///
/// # Errors
/// If `cost` fails.
pub fn statements<E>(
    mut cost: impl FnMut(&Stated) -> Result<Frame, E>,
) -> Result<Vec<Statement>, E> {
    let mut all = what_it_was_made_from(&mut cost)?;
    all.extend(what_it_was_not_made_from(&mut cost)?);
    Ok(all)
}

/// Statements from which cells follow. They repeat the derivation in the other direction.
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
    let what = "4 Gbit/s of 1024 B, one flow, 4 VMs on node 1 (§VI-A)";
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

/// Statements from which no cell follows.
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
    let what = "1 Gbit/s of 1024 B, one flow, 4 VMs on node 1 (§VI-A)";
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
