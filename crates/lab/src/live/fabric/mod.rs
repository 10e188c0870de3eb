//! Live experiments with a fabric: a controller, ten hosts in two racks, and real packets.
//!
//! | Module | Content |
//! |---|---|
//! | `world` | namespaces, bridges, hosts, VMs, the controller |
//! | `programs` | TCP of all VMs, in one thread |
//! | `samples` | rates in each second of a run |
//! | `guarantees` | QShare, Fig. 4 |
//! | `completion` | QShare, Fig. 5 |
//! | `story` | the run and the text of `make fabric-demo` |

mod completion;
mod guarantees;
mod programs;
mod samples;
mod story;
mod world;

pub(crate) use completion::run as fig5;
pub(crate) use guarantees::run as fig4;
pub(crate) use story::{picture as story_picture, run as story};
