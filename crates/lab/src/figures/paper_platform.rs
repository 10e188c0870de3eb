//! What a frame costs on the platform of the C2QoS paper.
//!
//! **Problem.** Figures that are simulated at the paper's scale need the cycles of its switch
//! (OVS-DPDK 2.9 on one core of 2.2 GHz). The paper prints no table, only a handful of numbers.
//! **Source.** C2QoS §III, §V and §VI-A; of §II-C only the limits that fitted the core, never the
//! losses, which the figures are compared with. **Rule.** Every cell but one follows from stated
//! numbers; where they leave a range, from its middle.
//!
//! **Quantities.** Cycles of one frame, one VM, one I/O core, memory on the core's own node.
//! `s`: bytes of a frame as the paper names them ("1024 byte").
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
//! 2. At least 565: two VMs with 64 B take 20 % of the core each (§VI-A), in no more batches than
//!    VM1, which has at most the 488,281 frames/s it bought. At most 701: the 3.0 M frames/s of
//!    Fig. 1 (c) fit the core, and no frame is shorter. The middle.
//! 3. (C(1024) - C(64)) / 960; bytes are copied in ingress alone (§III-B).
//! 4. Ingress of 1500 B is "more than twice" that of 64 B (§III-B): from 2 to 3 times; the middle.
//! 5. Classification and egress are what is left, 250. How they divide it the paper does not say.
//!    Of OVS-DPDK 3.1, measured beside our switch, looking up one flow is 27 % of a 64 B frame (343
//!    cycles, against 250 with rules that need no look-up); so classification is 27 % of C(64), and
//!    egress, which writes descriptors and copies nothing, the rest.
//! 6. "1.67 times more than that in the best case" (§III-B), see below.
//!
//! **"1.67 times more".** Where the paper prints a coefficient beside this phrase (1.14, 1.47) it
//! means the factor; in plain English it means 2.67 times. No coefficient stands beside the 1.67.
//! With a factor of 1.67, VM1's 0.6 M frames/s of many flows can take at most 0.4 M frames' worth
//! of look-up from VM2's 2.4 M: even if look-up were half of all cycles, VM2 would lose 8 %, where
//! Fig. 1 (c) has 16. So the table reads 2.67 ([`CLASSIFICATION_MULTIPLE`]). This cell alone was
//! chosen by an outcome: figures with many flows are calibrated ([`TOLD`]), and show beside it what
//! [`CLASSIFICATION_IF_A_FACTOR`], the other reading's cell, gives. §III-B itself says that the
//! ratio depends on the rules.
//!
//! **Checked against** what was not used: 64 B at 512 Mbit/s cost more than 1518 B at 2.4 Gbit/s
//! (§II-A); 2 + 8 Gbit/s of 512 B fit one core (Fig. 1 (a)); 1 Gbit/s costs 0.198 G cycles/s
//! (§VI-A); a batch that leaves a VM 41,000 tokens poorer (§IV-B) is one of 32 frames of a common
//! size. [`statements`] computes all of them from any costs: a test from the table, `c2qos-fig5`
//! from what the worker's counters say ([`super::paper_counters`]).
//!
//! **Departures.** Cycles that a batch costs however many frames it has are not stated: the cells
//! are those of full batches. **Cost.** None worth mentioning.

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
/// Classification: cycles a frame where flows are many: 2.67 times one flow's.
pub const CLASSIFICATION_MULTIPLE: f64 = 457.0;
/// The same if "1.67 times more" is the factor.
pub const CLASSIFICATION_IF_A_FACTOR: f64 = 286.0;
/// What a figure with many flows says is calibrated, but for what it shows beside it.
pub const TOLD: [&str; 2] =
    ["look-ups of many flows cost 2.67 times one flow's", "what VM2 loses in Fig. 1 (c)"];
/// Egress: cycles a frame.
pub const EGRESS_FRAME: f64 = 79.0;

/// All stages, memory on another NUMA node than the I/O core.
pub const REMOTE_NODE: f64 = 1.4;
/// All stages, two I/O cores instead of one.
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
    /// All on one node.
    OneNode,
    /// Dealt out over the nodes.
    SeveralNodes,
}

/// Cycles of one frame by stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stages {
    /// C_ingress.
    pub ingress: f64,
    /// C_classification.
    pub classification: f64,
    /// C_egress.
    pub egress: f64,
}

impl Stages {
    /// C = C_ingress + C_classification + C_egress (Eq. 1).
    #[must_use]
    pub fn total(self) -> f64 {
        self.ingress + self.classification + self.egress
    }
}

/// What a frame costs on some host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Frame {
    /// Cycles altogether.
    pub total: f64,
    /// By stage.
    pub stages: Stages,
}

/// Where the paper states what a frame costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// One VM, memory on the core's node.
    Alone,
    /// Two VMs there (§II-B).
    TwoVms,
    /// Four VMs on node 1 (§VI-A).
    Section6a,
}

impl Host {
    /// What all costs are multiplied with.
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

/// What the table says of a stated load.
#[must_use]
pub fn by_table(&(size, flows, host, _): &Stated) -> Frame {
    let Stages { ingress, classification, egress } = cost(size.into(), flows);
    let [ingress, classification, egress] =
        [ingress, classification, egress].map(|cycles| cycles * host.factor());
    let stages = Stages { ingress, classification, egress };
    Frame { total: stages.total(), stages }
}

/// The cell of a frame of `size` bytes.
#[must_use]
pub fn cost(size: u32, flows: Flows) -> Stages {
    cost_if(size, flows, CLASSIFICATION_MULTIPLE)
}

/// The same if classification costs `many_flows` where flows are many.
#[must_use]
pub fn cost_if(size: u32, flows: Flows, many_flows: f64) -> Stages {
    let classification = match flows {
        Flows::Single => CLASSIFICATION_SINGLE,
        Flows::Multiple => many_flows,
    };
    let ingress = INGRESS_FRAME + INGRESS_BYTE * f64::from(size);
    Stages { ingress, classification, egress: EGRESS_FRAME }
}

/// The factor of `vms` VMs. Stated are 1 and 4 VMs, that it grows much below 8 and stays from 10
/// on: it is drawn straight through the stated ones up to 8, at half the slope to 10, and level.
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

/// The factor of one or two I/O cores; of more the paper says nothing.
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

/// Something that the paper states, what costs make of it, and the band in which it agrees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Statement {
    /// Its name as a claim.
    pub id: &'static str,
    /// What is stated, and where.
    pub what: &'static str,
    /// The printed number, if one is printed.
    pub published: Option<f64>,
    /// What the costs give.
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

/// All numbers of the paper that costs can be held against; `cost` says what a frame of a load
/// costs.
///
/// # Errors
/// Those of `cost`.
pub fn statements<E>(
    mut cost: impl FnMut(&Stated) -> Result<Frame, E>,
) -> Result<Vec<Statement>, E> {
    let mut all = what_it_was_made_from(&mut cost)?;
    all.extend(what_it_was_not_made_from(&mut cost)?);
    Ok(all)
}

/// Statements that cells follow from: the derivation multiplied out again.
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

/// Statements that no cell follows from.
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
