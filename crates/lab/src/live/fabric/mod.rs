//! Live experiments with a fabric: a controller, ten hosts in two or three racks, and real packets.
//!
//! | Module | Content |
//! |---|---|
//! | `plan` | hosts, tenants and settings of a fabric, and the controller's files |
//! | `world` | namespaces, bridges, hosts, VMs, the controllers |
//! | `operator` | requests to the controllers |
//! | `parts` | parts that an experiment breaks, and whether the fabric has recovered |
//! | `process` | a program that is killed and started again |
//! | `core_switch` | the core switch as a Penstock process |
//! | `relay` | relays between agents and controllers, which can be cut |
//! | `programs` | TCP of all VMs, in one thread |
//! | `demand` | connections of VMs, and the rates that are due to them |
//! | `counters` | byte counters of all VMs and racks, read at one moment |
//! | `transport` | TCP connections of all VMs and queues of the bridges, once per second |
//! | `samples` | rates in each second of a run |
//! | `diary` | what the controller did during a run |
//! | `diagnosis` | what the fabric did in a second in which a tenant had too little |
//! | `guarantees` | QShare, Fig. 4 |
//! | `completion` | QShare, Fig. 5 |
//! | `plans` | the time of a plan, and the guarantees while plans are carried out |
//! | `spare` | tenants in the shared queue, without and with rate allocation in hosts |
//! | `faults` | recovery after a killed leader, silent hosts and a rebooted switch |
//! | `chaos`, `schedule` | ten minutes of faults at random, and their times |
//! | `story` | the run and the text of `make fabric-demo` |

mod chaos;
mod completion;
mod core_switch;
mod counters;
mod demand;
mod diagnosis;
mod diary;
mod faults;
mod guarantees;
mod operator;
mod parts;
mod plan;
mod plans;
mod process;
mod programs;
mod relay;
mod samples;
mod schedule;
mod spare;
mod story;
mod transport;
mod world;

pub(crate) use chaos::{picture as chaos_picture, run as chaos};
pub(crate) use completion::run as fig5;
pub(super) use counters::counter as kernel_counter;
pub(crate) use faults::{picture as faults_picture, run as faults};
pub(crate) use guarantees::run as fig4;
pub(crate) use plans::{picture as plans_picture, run as plans};
pub(crate) use spare::{picture as spare_picture, run as spare};
pub(crate) use story::{picture as story_picture, run as story};
