//! Defines the settings of a SONiC switch.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Code points of routing protocols and network control (CS6 and CS7 of RFC 4594 §3). Tenants get
/// these code points only with [`Settings::control_queue`].
pub const CONTROL: [u8; 2] = [48, 56];
/// Default of [`Settings::settle`].
pub const SETTLE: Duration = Duration::from_millis(50);

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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Rule by which the switch maps frames to queues.
    pub mode: MapMode,
    /// Form in which an entry of CONFIG_DB refers to another entry.
    pub reference: Reference,
    /// Number of usable queues of a port, including the shared queue: 2 to 7, or 2 to 8 with
    /// `control_queue`.
    pub queues: u8,
    /// SONiC's queue for each of the controller's queues, from the shared queue on. With
    /// `tenant_queues`, a port may have other QoS maps, which the driver extends. `None` means that
    /// the queues are 0 to `queues` - 1, and that the driver does not use ports with other maps.
    pub tenant_queues: Option<Vec<u8>>,
    /// True if a tenant may have queue 7, which SONiC uses for its own control packets, and the
    /// code points [`CONTROL`].
    pub control_queue: bool,
    /// Number of traffic classes of the switch's platform (2 to 16).
    pub classes: u8,
    /// Time between two transactions if the switch does not show what its ASIC has.
    pub settle: Duration,
    /// File with the password of the switch's redis, which the driver reads for each connection.
    /// White space at the end does not count. `None` if redis requires no password.
    pub password_file: Option<PathBuf>,
}

impl Default for Settings {
    /// Returns settings with seven queues, eight traffic classes and a static map. In the static
    /// map, code points 1 to 6 use queues 1 to 6.
    fn default() -> Self {
        Self {
            mode: MapMode::Static((1..7).map(|queue| (queue, queue)).collect()),
            reference: Reference::Plain,
            queues: 7,
            tenant_queues: None,
            control_queue: false,
            classes: 8,
            settle: SETTLE,
            password_file: None,
        }
    }
}

impl Settings {
    /// Returns SONiC's queue for each of the controller's queues.
    pub(super) fn sonic_queues(&self) -> Vec<u8> {
        self.tenant_queues.clone().unwrap_or_else(|| (0..self.queues).collect())
    }

    /// Returns true if tenants may not have the code point, because it belongs to network control.
    pub(super) fn is_control(&self, dscp: u8) -> bool {
        !self.control_queue && CONTROL.contains(&dscp)
    }
}
