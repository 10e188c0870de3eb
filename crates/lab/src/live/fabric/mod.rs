//! The fabric, live: a controller that governs real packets of ten hosts in two racks.
//!
//! | Module | Content |
//! |---|---|
//! | `world` | namespaces, bridges, hosts, VMs, the controller |
//! | `programs` | TCP of all VMs, in one thread |
//! | `samples` | measured seconds of a world |
//! | `guarantees` | QShare, Fig. 4 |
//! | `completion` | QShare, Fig. 5 |
//! | `story` | what `make fabric-demo` tells |

mod completion;
mod guarantees;
mod programs;
mod samples;
mod story;
mod world;

pub(crate) use completion::run as fig5;
pub(crate) use guarantees::run as fig4;
pub(crate) use story::{picture as story_picture, run as story};
