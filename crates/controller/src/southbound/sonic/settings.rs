//! Defines the settings of a SONiC switch.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Address at which the driver connects to the switch's redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Unix socket, such as `/var/run/redis/redis.sock` on the switch itself.
    Unix(PathBuf),
    /// Host and TCP port of redis. Redis does not encrypt, so the connection needs a tunnel.
    Tcp(String, u16),
}

/// Rule by which the switch maps frames to queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapMode {
    /// All ports have a common fixed map from code point to queue.
    Static(BTreeMap<u8, u8>),
    /// Each port has its own map, which may change. Not every platform supports changes of maps
    /// while traffic runs.
    PerPort,
}

/// Form in which an entry of CONFIG_DB refers to another entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reference {
    /// The form `name`, which SONiC images use since 202106.
    #[default]
    Plain,
    /// The form `[TABLE|name]`, which SONiC images before 202106 use.
    Bracketed,
}

#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    /// Rule by which the switch maps frames to queues.
    pub mode: MapMode,
    /// Form in which an entry of CONFIG_DB refers to another entry.
    pub reference: Reference,
    /// Number of usable queues of a port, including the shared queue: 2 to 7, or 2 to 8 with
    /// `control_queue`.
    pub queues: u8,
    /// True if a tenant may have queue 7, which SONiC uses for its own control packets.
    pub control_queue: bool,
    /// Number of traffic classes of the switch's platform (2 to 16).
    pub classes: u8,
    /// Password of the switch's redis. `None` if redis requires no password.
    pub password: Option<String>,
}

impl Default for Settings {
    /// Returns settings with seven queues, eight traffic classes and a static map. In the static
    /// map, code points 1 to 6 use queues 1 to 6.
    fn default() -> Self {
        let map = (1..7).map(|queue| (queue, queue)).collect();
        let (mode, reference) = (MapMode::Static(map), Reference::Plain);
        let (control_queue, password) = (false, None);
        Self { mode, reference, queues: 7, control_queue, classes: 8, password }
    }
}

impl Settings {
    /// Returns the number of traffic classes that the driver may use.
    pub(super) fn classes_used(&self) -> u8 {
        match self.mode {
            MapMode::Static(_) => self.queues,
            MapMode::PerPort => self.classes,
        }
    }
}

impl fmt::Debug for Settings {
    /// Formats the settings without the password, because passwords must not appear in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mode, reference, queues, control_queue, classes, password: _ } = self;
        let mut show = f.debug_struct("Settings");
        show.field("mode", mode).field("reference", reference).field("queues", queues);
        show.field("control_queue", control_queue).field("classes", classes);
        show.finish_non_exhaustive()
    }
}
