//! The view of vCPUs: share of the CPU and waiting times of each vCPU.

use super::model::Model;
use crate::verbs::vcpu;

/// Indices of the columns that the view hides on a narrow terminal, in the order of hiding.
pub const HIDDEN_FIRST: [usize; 8] = [11, 10, 8, 6, 1, 3, 5, 2];

#[must_use]
pub fn rows(model: &Model) -> Vec<[String; 13]> {
    let vms = model.vcpus().into_iter().flat_map(|state| &state.vms);
    vms.flat_map(|vm| vm.vcpus.iter().map(|each| vcpu::cells(vm, each))).collect()
}

/// Returns the reason why the view of vCPUs is empty.
#[must_use]
pub fn absent(model: &Model) -> String {
    match model.status().vcpu_dir.as_str() {
        "" => "no vCPUs are scheduled: the configuration has no [vcpu]".to_owned(),
        dir => format!("no vCPU scheduler writes to {dir}: start `penstock vcpu run`"),
    }
}

/// Returns the view of vCPUs as text. Returns an empty text if no vCPUs are scheduled.
#[must_use]
pub fn table(model: &Model) -> String {
    match model.vcpus() {
        Some(state) => vcpu::table(&state.vms),
        None if model.status().vcpu_dir.is_empty() => String::new(),
        None => format!("{}\n", absent(model)),
    }
}
