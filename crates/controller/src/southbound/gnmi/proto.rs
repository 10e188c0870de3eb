//! Contains the code of gNMI's client and server, which the build generates from `proto/`. Only
//! tests use the code of gNMI's server.
#![allow(
    clippy::all,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::unwrap_used,
    dead_code,
    deprecated,
    missing_debug_implementations,
    missing_docs,
    reason = "generated"
)]

pub mod gnmi_ext {
    tonic::include_proto!("gnmi_ext");
}

mod gnmi {
    tonic::include_proto!("gnmi");
}

pub use gnmi::*;

use crate::Stamp;

/// Returns a MasterArbitration extension with a controller's stamp. The controller with the latest
/// stamp is the master. With a role, the controller is the master only of the entries that the
/// driver writes. Without a role, the controller is the master of all entries.
pub(super) fn arbitration(stamp: Stamp, with_role: bool) -> gnmi_ext::Extension {
    let election_id = gnmi_ext::Uint128 { high: stamp.epoch, low: stamp.generation };
    let role = with_role.then(|| gnmi_ext::Role { id: "penstock".to_owned() });
    let arbitration = gnmi_ext::MasterArbitration { role, election_id: Some(election_id) };
    gnmi_ext::Extension { ext: Some(gnmi_ext::extension::Ext::MasterArbitration(arbitration)) }
}
