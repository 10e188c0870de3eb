//! Live experiments for the figures of the VM jitter paper that show the scheduling of virtual
//! processors. Micro-guests share one core under Linux's fair class or the Penstock scheduler.
//!
//! | Module | Content |
//! |---|---|
//! | `bed` | processes of the guests and the scheduler |
//! | `events` | pseudo-random events, and the guests' reaction times |
//! | `wakeup` | reaction times, shares, and the scheduler's own time |
//! | `many` | like `wakeup`, for several deadlines and for sixteen VMs |
//! | `steal` | time that the hypervisor took from a core |
//! | `stream` | Figs. 2 and 6: a VM that sends a stream |
//! | `pings` | Fig. 7: requests every 0.1 s |
//! | `linux_pings` | Fig. 7 with a Linux guest: pings |
//! | `qemu`, `wire` | the Linux guest, and the frames to and from it |
//! | `shares` | Fig. 12: VMs start and stop |

mod bed;
mod events;
mod linux_pings;
mod many;
mod pings;
mod qemu;
mod shares;
pub(super) mod steal;
mod stream;
mod wakeup;
mod wire;

pub(crate) use many::{picture as wakeup_many_picture, run as wakeup_many};
pub(crate) use pings::fig7;
pub(crate) use shares::{fig12, fig12_picture};
pub(crate) use stream::{fig2, fig6, fig6_picture};
pub(crate) use wakeup::{long as wakeup_long, picture as wakeup_picture, run as wakeup};
