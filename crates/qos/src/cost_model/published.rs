//! Coefficients from a paper, for conditions that a host cannot measure.
//!
//! The published coefficients are from C2QoS §III-C, Fig. 6. Each factor is a frame's cost divided
//! by the cost on a host with one VM, one I/O core and local memory:
//!
//! - With four VMs on one NUMA node, the cost of a frame is 1.14 times the cost with one VM. For
//!   other numbers of VMs, C2QoS has only a curve (Fig. 6(b)), which the cost model does not use.
//!   Beyond 4 VMs, the factor for the number of VMs is constant.
//! - With two I/O cores, a frame costs 1.47 times as much, mainly because of competition for locks.
//! - With the VM on another NUMA node than the I/O core, a frame costs 1.4 times as much.

/// Factors for numbers of VMs on the host, as pairs of number and factor.
pub const VMS_PUBLISHED: [(u32, f64); 2] = [(1, 1.0), (4, 1.14)];
/// Factors for numbers of I/O cores, as pairs of number and factor.
pub const CORES_PUBLISHED: [(u32, f64); 2] = [(1, 1.0), (2, 1.47)];
/// Factor if the VM's memory is on another NUMA node than the I/O core.
pub const NUMA_PUBLISHED: f64 = 1.4;
