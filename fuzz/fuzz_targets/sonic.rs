//! [`penstock_fuzz::switches`] under libFuzzer: `scripts/fuzz.sh sonic`.
#![forbid(unsafe_code)]
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| penstock_fuzz::switches::run_sonic(data));
