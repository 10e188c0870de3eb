//! [`penstock_fuzz::xdp_rings`] under libFuzzer: `scripts/fuzz.sh xdp_rings`.
#![forbid(unsafe_code)]
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| penstock_fuzz::xdp_rings::run(data));
