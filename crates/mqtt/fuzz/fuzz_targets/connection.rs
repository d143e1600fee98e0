#![no_main]
libfuzzer_sys::fuzz_target!(|input: &[u8]| mqtt_fuzz::connection(input));
