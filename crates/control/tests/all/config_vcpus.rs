//! Tests of the tables `[vcpu]` and `[[vm]]`: required keys, and the admission of all deadlines
//! together.

use penstock_control::config::{Machine, parse_on};

use crate::wrong::BASE;

/// Returns the mistakes that `text` has on a machine with twelve CPUs; the file positions are left
/// out.
fn told(text: &str) -> Vec<String> {
    let machine = Machine { cores: Some((0..12).collect()) };
    match parse_on(&format!("{BASE}{text}"), "host.toml", &machine) {
        Ok(_) => Vec::new(),
        Err(errors) => {
            let all = errors.0.iter().map(ToString::to_string);
            let after = |text: String| text.split_once(": ").map(|(_, text)| text.to_owned());
            all.filter_map(after).collect()
        }
    }
}

const PORT: &str = "[[port]]\nname = \"web0\"\ntap.interface = \"web0\"\nvm = \"web\"\n";

#[test]
fn a_vm_needs_processors_and_a_port_a_vm() {
    let web = "[[vm]]\nname = \"web\"\npid = 1\n";
    assert_eq!(told(&format!("{PORT}{web}[vcpu]\ncpus = [7]\n")), Vec::<String>::new());
    assert_eq!(
        told(&format!("{PORT}{web}")),
        ["vm \"web\": there is no [vcpu]; add [vcpu] with the CPUs of all VMs, such as \
          `cpus = [2, 3]`"]
    );
    assert_eq!(
        told(PORT),
        ["port \"web0\": VM \"web\" does not exist; add a [[vm]] of this name, or remove `vm`"]
    );
    assert_eq!(
        told(&format!("{PORT}[vcpu]\ncpus = [7]\n[[vm]]\nname = \"db\"\npid = 1\n")),
        ["port \"web0\": VM \"web\" does not exist; add a [[vm]] of this name, or name an \
             existing VM: db"]
    );
}

#[test]
fn each_mistake_has_its_place_and_a_remedy() {
    let got = told(
        "[worker]\ncores = [3]\n[vcpu]\ncpus = [3, 3]\nrun_dir = \"run\"\ndeadlines_max = 0\n\
         [[vm]]\nname = \"a\"\npid = 1\nprocess = \"x\"\nvcpus = 65\nvcpu_weight = 0\n\
         [[vm]]\nname = \"b\"\npid = 1\nvcpu_mode = \"aperiodic\"\nio_reserve = 51\n\
         [[vm]]\nname = \"c\"\npid = 1\nvcpu_mode = \"reserved\"\ndeadline = \"3 ms\"\n\
         runtime = \"4 ms\"\n[[vm]]\nname = \"d\"\npid = 1\nvcpu_mode = \"driver\"\n\
         [[vm]]\nname = \"d\"\npid = 1\ndeadline = \"3 ms\"\nruntime = \"1 ms\"\n",
    );
    for part in [
        "[vcpu]: `cpus`: 3 is named twice; name each CPU once",
        "[vcpu]: a worker of the switch polls on CPU 3; remove the CPU",
        "[vcpu]: `run_dir` is relative; write an absolute path",
        "[vcpu]: `deadlines_max`: 0 percent; write 1 to 100",
        "vm \"a\": the VM needs exactly one source of its threads; write one of",
        "vm \"a\": `vcpus`: 65; write 1 to 64",
        "vm \"a\": `vcpu_weight`: 0; write 1 to 10000",
        "vm \"b\": `deadline` is missing; write a deadline, such as",
        "vm \"b\": `io_reserve`: 51 percent; write 0 to 50",
        "vm \"c\": `runtime` \"4 ms\" is not valid in a period of 3000 us; write 2 us to",
        "vm \"d\": `vcpu_mode` driver is supported in simulations",
        "vm \"d\": the name \"d\" is used twice",
        "vm \"d\": `deadline` has no effect in this `vcpu_mode`; set `vcpu_mode`",
        "vm \"d\": `runtime` without `vcpu_mode` reserved; remove the key",
    ] {
        assert!(got.iter().any(|error| error.starts_with(part)), "{part} in\n{}", got.join("\n"));
    }
}

#[test]
fn deadlines_are_admitted_together() {
    let vm = |name: &str, terms: &str| format!("[[vm]]\nname = \"{name}\"\npid = 1\n{terms}");
    let voice = "vcpu_mode = \"periodic\"\ndeadline = \"3 ms\"\n";
    let of = |cpus: &str, others: usize, voices: usize| {
        let others = (0..others).map(|at| vm(&format!("other{at}"), ""));
        let voices = (0..voices).map(|at| vm(&format!("voice{at}"), voice));
        let vms: String = others.chain(voices).collect();
        told(&format!("[vcpu]\ncpus = [{cpus}]\n{vms}"))
    };
    assert_eq!(of("7", 5, 1), Vec::<String>::new());
    let refused = of("7", 7, 1);
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(refused[0].starts_with("vm \"voice0\": deadline refused: on processor 7, "));
    assert!(refused[0].contains("a deadline of 3.5 ms"), "{refused:?}");
    assert_eq!(of("7, 8", 7, 1), Vec::<String>::new(), "there is room on another");
    // Each of the five periodic VMs would fit alone, but together they do not fit.
    assert!(!of("7", 1, 5).is_empty());
    // Admission counts the planned number of vCPUs of a VM, here nine.
    let wide = vm("wide", &format!("vcpus = 9\n{voice}"));
    assert!(!told(&format!("[vcpu]\ncpus = [7]\n{wide}")).is_empty());
}
