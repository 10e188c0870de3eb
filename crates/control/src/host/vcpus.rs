//! Opens the bells that notify a VM's vCPU scheduler of frames (`penstock_vcpu::bells`).
//!
//! A bell is a notification to the vCPU scheduler. When frames for a port with the key `vm` arrive,
//! the worker sends a notification for the named VM. A problem with a bell, which notifies a vCPU
//! scheduler, causes only a warning. The switch still delivers frames, and the VM waits for its
//! turn on the CPU.

use std::collections::BTreeMap;

use penstock_dataplane::port::vcpu_bells::{VcpuBell, VcpuBells};

use crate::config::HostConfig;

/// Returns the bells of the ports in `config`, by the port's name. Each change of the configuration
/// opens the file that contains the bells of all VMs, and creates this file if it is missing. A VM
/// keeps its bell while the VM's name is configured.
pub(super) fn bells(config: &HostConfig, warnings: &mut Vec<String>) -> BTreeMap<String, VcpuBell> {
    let mut bells = BTreeMap::new();
    let Some(vcpu) = &config.vcpu else { return bells };
    let with_vm: Vec<_> =
        config.ports.iter().filter_map(|port| Some((&port.name, port.vm.as_ref()?))).collect();
    if with_vm.is_empty() {
        return bells;
    }
    let opened = match VcpuBells::open(&vcpu.run_dir()) {
        Ok(opened) => opened,
        Err(error) => {
            warnings.push(format!("vCPU schedulers receive no frame events: {error}"));
            return bells;
        }
    };
    for (port, vm) in with_vm {
        match opened.claim(vm) {
            Ok(bell) => drop(bells.insert(port.clone(), bell)),
            Err(error) => warnings.push(format!("port {port}: {error}")),
        }
    }
    bells
}

/// Returns a warning if `[vcpu]` or `[[vm]]` has changed. A running vCPU scheduler uses the old
/// `[vcpu]` and `[[vm]]` until it reads the configuration file again.
pub(super) fn outdated(old: &HostConfig, new: &HostConfig) -> Option<String> {
    let act = if old.vcpu != new.vcpu {
        "[vcpu] changed: restart `penstock vcpu run`, which takes over the VMs"
    } else if old.vms != new.vms {
        "[[vm]] changed: run `penstock vcpu reload`"
    } else {
        return None;
    };
    (!old.vms.is_empty()).then(|| act.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_terms_that_change_are_outdated() {
        let of = |vms: &str| {
            let text = format!("[host]\nname = \"h\"\n[vcpu]\ncpus = [7]\n{vms}");
            toml_edit::de::from_str::<HostConfig>(&text).unwrap()
        };
        let (none, one) = (of(""), of("[[vm]]\nname = \"web\"\npid = 1\n"));
        let other = of("[[vm]]\nname = \"web\"\npid = 1\nvcpu_weight = 2\n");
        assert_eq!((outdated(&none, &one), outdated(&one, &one)), (None, None));
        assert!(outdated(&one, &other).unwrap().contains("vcpu reload"));
        let mut moved = one.clone();
        moved.vcpu.as_mut().unwrap().cpus = vec![6];
        assert!(outdated(&one, &moved).unwrap().contains("restart `penstock vcpu run`"));
    }
}
