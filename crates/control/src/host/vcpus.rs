//! The bells by which a VM's vCPU scheduler hears of frames (`penstock_vcpu::bells`).
//!
//! **Rule.** Ports that name a VM ring that VM's bell. Whatever is wrong with the bells is a
//! warning: frames go where they went, and the VM waits for its turn as without.

use std::collections::BTreeMap;

use penstock_dataplane::port::vcpu_bells::{VcpuBell, VcpuBells};

use crate::config::HostConfig;

/// The bells of `config`'s ports, by port. They are opened anew at each change, so that a file that
/// was removed is made again; a VM keeps its bell as long as its name stands there.
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

/// What is said when terms of VMs that ran are others now: their scheduler read its file once.
pub(super) fn outdated(old: &HostConfig, new: &HostConfig) -> Option<String> {
    let changed = old.vms != new.vms || old.vcpu != new.vcpu;
    (changed && !old.vms.is_empty()).then(|| {
        "[vcpu] or [[vm]] changed: start `penstock vcpu run` anew, which goes on with the VMs there"
            .to_owned()
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
