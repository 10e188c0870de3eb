//! VM jitter's processor figures, live: micro-guests on one core, under Linux's fair class and
//! under our scheduler.
//!
//! | Module | Content |
//! |---|---|
//! | `bed` | guests and scheduler as processes |
//! | `events` | events at times that a seed decides, and the times at which guests saw them |
//! | `wakeup` | event to first instruction, shares, and the scheduler's own time |
//! | `many` | the same with several deadlines, and of sixteen VMs |
//! | `steal` | time that the host of this machine took meanwhile |
//! | `stream` | Figs. 2 and 6: a stream that a VM sends by itself |
//! | `pings` | Fig. 7: requests every 0.1 s |
//! | `linux_pings` | Fig. 7 with a Linux guest: pings over a wire of the lab's own |
//! | `qemu`, `wire` | that guest, and its frames |
//! | `shares` | Fig. 12: VMs start and stop |

mod bed;
mod events;
mod linux_pings;
mod many;
mod pings;
mod qemu;
mod shares;
mod steal;
mod stream;
mod wakeup;
mod wire;

pub(crate) use many::{picture as wakeup_many_picture, run as wakeup_many};
pub(crate) use pings::fig7;
pub(crate) use shares::{fig12, fig12_picture};
pub(crate) use stream::{fig2, fig6, fig6_picture};
pub(crate) use wakeup::{long as wakeup_long, picture as wakeup_picture, run as wakeup};
