//! Text from users and other programs: configuration, SONiC's tables, captures.

use std::path::Path;
use std::{env, fs, process};

use dcqcn_common::params::{Config, Params, Port};
use dcqcn_params::{DetectedLink, parse, sonic, to_toml};
use dcqcn_replay::replay::Capture;

/// A configuration file.
pub(crate) fn config(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let settings = match parse("fuzz", text) {
        Ok(settings) => settings,
        Err(errors) => {
            assert!(!errors.to_string().is_empty(), "the error has a text");
            return;
        }
    };
    let written = to_toml(&settings);
    let again = parse("fuzz", &written).unwrap_or_else(|errors| panic!("{errors}\n{written}"));
    assert_eq!(to_toml(&again), written, "saving and parsing is lossless");
    let found = DetectedLink {
        link_rate_bps: Some(1_000_000_000),
        wire_overhead_bytes: 24,
        ..DetectedLink::default()
    };
    if let Ok(config) = settings.config_on(&found) {
        // Any values in range and consistent can be activated.
        Params::new(&config, Port::new(1, 8, 8)).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// A switch's tables: imported, activated, exported, and imported again.
pub(crate) fn sonic(bytes: &[u8]) {
    const PORT: &str = "Ethernet0";
    let Ok(database) = sonic::Database::parse("fuzz", bytes) else { return };
    let Ok(import) = sonic::import(&database, PORT, &Config::DEFAULT) else { return };
    let mut config = Config::DEFAULT;
    for (_, change) in &import.settings {
        change.key.set(&mut config, change.value).unwrap_or_else(|error| panic!("{error}"));
    }
    let Ok(export) = sonic::export(&config, PORT) else { return };
    let text = export.tables.to_string();
    let database = sonic::Database::parse("fuzz", text.as_bytes()).expect("an export can be imported");
    let import = sonic::import(&database, PORT, &config).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let mut again = config;
    for (_, change) in &import.settings {
        change.key.set(&mut again, change.value).unwrap_or_else(|error| panic!("{error}"));
    }
    let export = sonic::export(&again, PORT).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(export.tables.to_string(), text, "byte for byte");
}

/// A capture file.
pub(crate) fn capture(bytes: &[u8]) {
    // The reader needs a file; one in memory is a hundred times faster.
    let shared_memory = Path::new("/dev/shm");
    let folder = if shared_memory.is_dir() { shared_memory.to_owned() } else { env::temp_dir() };
    let path = folder.join(format!("dcqcn-fuzz-{}", process::id()));
    fs::write(&path, bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    if let Ok(mut capture) = Capture::open(&path) {
        // Each packet takes some bytes, so that the end comes.
        for packets in 0.. {
            assert!(packets <= bytes.len(), "a capture without end");
            match capture.next_packet() {
                Some(Ok(packet)) => assert!(packet.data.len() <= bytes.len() + 64),
                Some(Err(_)) | None => break,
            }
        }
    }
    let _ = fs::remove_file(&path);
}
