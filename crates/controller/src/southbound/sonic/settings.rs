//! What can be chosen about a SONiC switch.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Where the switch's redis listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A unix socket, such as `/var/run/redis/redis.sock` on the switch itself.
    Unix(PathBuf),
    /// A host and a port. Redis does not encrypt: only through a tunnel.
    Tcp(String, u16),
}

/// How frames come to queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapMode {
    /// The same everywhere, set once: the queue of each code point.
    Static(BTreeMap<u8, u8>),
    /// As told, on each port. Not every platform takes that while traffic runs.
    PerPort,
}

/// How one entry names another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reference {
    /// `name`, in images since 202106.
    #[default]
    Plain,
    /// `[TABLE|name]`, in older ones.
    Bracketed,
}

/// What can be chosen about a SONiC switch.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    /// How frames come to queues.
    pub mode: MapMode,
    /// How one entry names another.
    pub reference: Reference,
    /// Queues of a port that may be used, the shared one included: 2 to 7, or 8 with
    /// `control_queue`.
    pub queues: u8,
    /// Whether queue 7, by which SONiC sends its own control packets, may be a tenant's.
    pub control_queue: bool,
    /// Traffic classes of the platform: 2 to 16.
    pub classes: u8,
    /// Password of redis, if it wants one.
    pub password: Option<String>,
}

impl Default for Settings {
    /// Seven queues and eight classes; code points 1 to 6 are in the queues 1 to 6.
    fn default() -> Self {
        let map = (1..7).map(|queue| (queue, queue)).collect();
        let (mode, reference) = (MapMode::Static(map), Reference::Plain);
        let (control_queue, password) = (false, None);
        Self { mode, reference, queues: 7, control_queue, classes: 8, password }
    }
}

impl Settings {
    /// Above the highest traffic class that a code point may have.
    pub(super) fn classes_used(&self) -> u8 {
        match self.mode {
            MapMode::Static(_) => self.queues,
            MapMode::PerPort => self.classes,
        }
    }
}

impl fmt::Debug for Settings {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mode, reference, queues, control_queue, classes, password: _ } = self;
        let mut show = f.debug_struct("Settings");
        show.field("mode", mode).field("reference", reference).field("queues", queues);
        show.field("control_queue", control_queue).field("classes", classes);
        show.finish_non_exhaustive()
    }
}
