//! Live experiments for published figures, with Penstock, OVS-DPDK and real load on one machine.
//!
//! # Problem
//!
//! A simulation may be wrong about real rings, caches and neighbours.
//!
//! # Approach
//!
//! One process starts the switches and plays all VMs from one loop on one core. While the process
//! measures one switch, it pauses the other switches. At the end of a run, a guard removes
//! everything that the run created. With each number, the report states possible distortions: waits
//! for a core, or rings that were never full.
//!
//! | Module | Content |
//! |---|---|
//! | `bracket` | windows between two calibrations, repeated if the machine changed |
//! | `uplink` | C2QoS Fig. 13: the uplink is full |
//! | `stage` | namespaces with real programs behind a Penstock switch |
//! | `many` | C2QoS Fig. 6: cost of a frame with more VMs |
//! | `noisy` | C2QoS Fig. 1: a victim and aggressors |
//! | `demo`, `demo_story` | the run of `make demo`, and the sentences that it prints |
//! | `bill` | C2QoS: a test that each VM pays for the cycles that it causes |
//! | `machine` | CPU time of other programs and the hypervisor during a measurement |
//! | `needs` | checks that programs are installed |
//! | `classes` | C2QoS Fig. 3 and Fig. 11: latency on a full core |
//! | `sold` | VMs that bought rates from this host's cost model |
//! | `idle_cycles` | C2QoS Fig. 7: shares of unsold and unused cycles |
//! | `accuracy` | C2QoS Fig. 11 (a) and (b): delivered rate over the purchased rate |
//! | `contracts` | C2QoS Fig. 11: delivered rate over the purchased rate |
//! | `remedies` | made situations, and whether `penstock explain` names their causes |
//! | `limits`, `gso_flood` | rate limits with real TCP and UDP |
//! | `bandwidth` | C2QoS Fig. 10: iperf3 and qperf |
//! | `applications` | C2QoS Fig. 12: FTP servers and web servers |
//! | `shared_link` | `uplink-shares`: a link that tenants share, beside HTB and one queue |
//! | `shares` | FS-VDE, Table II: five flows of two clients |
//! | `shaped` | two namespaces for VM jitter's figures: a shaped VM and the network |
//! | `capture` | frames that arrive in a namespace, and their times |
//! | `rtp` | VM jitter, Fig. 8: an RTP stream |
//! | `requests` | VM jitter, Fig. 9: ApacheBench |
//! | `spacing` | VM jitter, Fig. 10: spacing of the departing frames |
//! | `rates` | VM jitter, Fig. 11: the rate of a shaped VM |
//! | `fabric` | QShare: racks of hosts under a controller |
//! | `vcpu` | VM jitter, Figs. 2, 6, 7 and 12: virtual processors on one core |
//! | `snapshots` | turns of a worker that gets a new snapshot |
//! | `vde` | `vde_switch` for comparison |

mod accuracy;
mod applications;
mod bandwidth;
mod bill;
mod bracket;
mod capture;
mod classes;
mod contracts;
mod demo;
mod demo_story;
mod fabric;
mod gso_flood;
mod idle_cycles;
mod limits;
mod machine;
mod many;
mod needs;
mod noisy;
mod picture;
mod rates;
mod remedies;
mod requests;
mod rtp;
mod shaped;
mod shared_link;
mod shares;
mod slices;
mod snapshots;
mod sold;
mod spacing;
mod stage;
mod uplink;
mod vcpu;
mod vde;

pub(crate) use applications::run as fig12;
pub(crate) use bandwidth::run as fig10;
pub(crate) use bill::run as bill;
pub(crate) use classes::{fig3, fig11};
pub(crate) use contracts::{false_remedy, run as contracts};
pub(crate) use demo::{picture as demo_picture, run as demo};
pub(crate) use fabric::{
    chaos as qshare_chaos, chaos_picture as qshare_chaos_picture, faults as qshare_faults,
    faults_picture as qshare_faults_picture, fig4 as qshare_fig4, fig5 as qshare_fig5,
    plans as qshare_plans, plans_picture as qshare_plans_picture, spare as qshare_spare,
    spare_picture as qshare_spare_picture, story as fabric_demo,
    story_picture as fabric_demo_picture,
};
pub(crate) use idle_cycles::run as fig7;
pub(crate) use limits::{COST, both_claim, run as limits, udp_claim};
pub(crate) use many::run as fig6;
pub(crate) use noisy::run as fig1;
pub(crate) use picture::by_unit as picture;
pub(crate) use rates::run as jitter_fig11;
pub(crate) use remedies::wrong_words;
pub(crate) use requests::run as jitter_fig9;
pub(crate) use rtp::run as jitter_fig8;
pub(crate) use shared_link::{picture as uplink_shares_picture, run as uplink_shares};
pub(crate) use shares::run as table2;
pub(crate) use spacing::run as jitter_fig10;
pub(crate) use uplink::run as fig13;
pub(crate) use vcpu::{
    fig2 as jitter_fig2, fig6 as jitter_fig6, fig6_picture as jitter_fig6_picture,
    fig7 as jitter_fig7, fig12 as jitter_fig12, fig12_picture as jitter_fig12_picture,
    wakeup as vcpu_wakeup, wakeup_long as vcpu_wakeup_long, wakeup_many as vcpu_wakeup_many,
    wakeup_many_picture as vcpu_wakeup_many_picture, wakeup_picture as vcpu_wakeup_picture,
};
