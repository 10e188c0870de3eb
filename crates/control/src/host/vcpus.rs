//! The bells that notify a VM's vCPU scheduler of frames (`penstock_vcpu::bells`).
//!
//! A port with `vm` rings that VM's bell. A problem with a bell is only a warning: frames are still
//! delivered, and the VM waits for its turn.

use std::collections::BTreeMap;

use penstock_dataplane::port::vcpu_bells::{VcpuBell, VcpuBells};

use crate::config::HostConfig;

/// The bells of `config`'s ports, by port. Each change opens them again, so that a removed file is
/// created again. A VM keeps its bell while its name is configured.
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
            warnings.push(format!("no vCPU scheduler hears of frames: {error}"));
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

/// The warning about changed terms of running VMs. Their scheduler reads its file only at its
/// start.
pub(super) fn outdated(old: &HostConfig, new: &HostConfig) -> Option<String> {
    let changed = old.vms != new.vms || old.vcpu != new.vcpu;
    (changed && !old.vms.is_empty()).then(|| {
        "[vcpu] or [[vm]] changed: restart `penstock vcpu run`; it takes over the VMs".to_owned()
    })
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
        assert!(outdated(&one, &other).unwrap().contains("vcpu run"));
    }
}
