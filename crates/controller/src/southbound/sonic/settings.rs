//! Settings of a SONiC switch.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Address of the switch's redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A unix socket, such as `/var/run/redis/redis.sock` on the switch itself.
    Unix(PathBuf),
    /// A host and a port. Redis does not encrypt, so the connection needs a tunnel.
    Tcp(String, u16),
}

/// How frames are mapped to queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapMode {
    /// All ports have the same fixed map from code point to queue.
    Static(BTreeMap<u8, u8>),
    /// Each port has its own map, which may change. Not every platform supports changes while
    /// traffic runs.
    PerPort,
}

/// How an entry refers to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reference {
    /// The form `name`, in images since 202106.
    #[default]
    Plain,
    /// The form `[TABLE|name]`, in older images.
    Bracketed,
}

/// Settings of a SONiC switch.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    /// How frames are mapped to queues.
    pub mode: MapMode,
    /// How an entry refers to another.
    pub reference: Reference,
    /// Usable queues of a port, including the shared one: 2 to 7, or 8 with `control_queue`.
    pub queues: u8,
    /// Whether a tenant may have queue 7, which SONiC uses for its own control packets.
    pub control_queue: bool,
    /// Traffic classes of the platform: 2 to 16.
    pub classes: u8,
    /// Password of redis, if it requires one.
    pub password: Option<String>,
}

impl Default for Settings {
    /// Returns settings with seven queues and eight classes. Code points 1 to 6 use queues 1 to 6.
    fn default() -> Self {
        let map = (1..7).map(|queue| (queue, queue)).collect();
        let (mode, reference) = (MapMode::Static(map), Reference::Plain);
        let (control_queue, password) = (false, None);
        Self { mode, reference, queues: 7, control_queue, classes: 8, password }
    }
}

impl Settings {
    /// Number of usable traffic classes.
    pub(super) fn classes_used(&self) -> u8 {
        match self.mode {
            MapMode::Static(_) => self.queues,
            MapMode::PerPort => self.classes,
        }
    }
}

impl fmt::Debug for Settings {
    /// Leaves out the password, because it must not appear in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mode, reference, queues, control_queue, classes, password: _ } = self;
        let mut show = f.debug_struct("Settings");
        show.field("mode", mode).field("reference", reference).field("queues", queues);
        show.field("control_queue", control_queue).field("classes", classes);
        show.finish_non_exhaustive()
    }
}
