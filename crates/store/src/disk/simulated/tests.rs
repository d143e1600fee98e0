//! The guarantees of the simulated disk.

use std::io;

use super::*;

#[test]
fn synced_bytes_survive_and_unsynced_sectors_survive_in_any_combination() -> io::Result<()> {
    let mut outcomes = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let disk = SimDisk::new(seed, 1 << 20);
        let file = disk.open("log")?;
        file.write_at(&[1; 2048], 0)?;
        file.sync()?;
        disk.sync_dir("")?;
        file.write_at(&[2; 1024], 512)?;
        let found = contents(&disk.crash(), "log")?;
        assert_eq!((found[0], found[2047]), (1, 1));
        outcomes.insert((found[512], found[1024]));
        assert_eq!(contents(&disk.kill(), "log")?[512..1536], [2; 1024]);
    }
    assert_eq!(outcomes.len(), 4);
    Ok(())
}

#[test]
fn unsynced_names_may_be_lost_and_synced_ones_are_not() -> io::Result<()> {
    let mut survivals = 0;
    for seed in 0..100 {
        let disk = SimDisk::new(seed, 1 << 20);
        disk.open("old")?;
        disk.sync_dir("")?;
        disk.rename("old", "new")?;
        let files = disk.crash().files();
        assert_eq!(files.len(), 1);
        survivals += usize::from(files[0] == "new");
        disk.sync_dir("")?;
        assert_eq!(disk.crash().files(), ["new"]);
    }
    assert!((20..80).contains(&survivals));
    Ok(())
}

#[test]
fn writes_of_a_failed_sync_may_be_lost_despite_a_later_sync() -> io::Result<()> {
    let mut lost = 0;
    for seed in 0..50 {
        let disk = SimDisk::new(seed, 1 << 20);
        let file = disk.open("log")?;
        disk.sync_dir("")?;
        file.write_at(&[7; 512], 0)?;
        disk.fail_sync(0);
        assert!(file.sync().is_err());
        file.sync()?;
        lost += usize::from(contents(&disk.crash(), "log")? != [7; 512]);
    }
    assert!(lost > 0);
    Ok(())
}

#[test]
fn a_full_disk_says_so_and_reserved_space_stays_usable() -> io::Result<()> {
    let disk = SimDisk::new(1, 2048);
    let (one, two) = (disk.open("one")?, disk.open("two")?);
    one.reserve(1024)?;
    let full = two.write_at(&[1; 2048], 0).unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    assert_eq!(two.len()?, 1024);
    one.write_at(&[1; 1024], 0)?;
    assert_eq!(disk.free_space()?, 0);
    disk.remove("two")?;
    assert_eq!(disk.free_space()?, 1024);
    Ok(())
}

#[test]
fn a_file_that_grows_without_a_reservation_takes_space_only_as_it_is_written() -> io::Result<()> {
    let disk = SimDisk::new(1, 2048);
    disk.refuse_reservations();
    let file = disk.open("one")?;
    assert_eq!(file.reserve(1024).unwrap_err().kind(), io::ErrorKind::Unsupported);
    file.set_len(4096)?;
    assert_eq!(disk.free_space()?, 2048);
    file.write_at(&[1; 2048], 0)?;
    let full = file.write_at(&[1; 512], 2048).unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    Ok(())
}

#[test]
fn the_same_seed_gives_the_same_crash() -> io::Result<()> {
    let run = || -> io::Result<Vec<u8>> {
        let disk = SimDisk::new(42, 1 << 20);
        let file = disk.open("log")?;
        disk.sync_dir("")?;
        file.write_at(&[3; 8192], 0)?;
        contents(&disk.crash(), "log")
    };
    assert_eq!(run()?, run()?);
    Ok(())
}

fn contents(disk: &SimDisk, path: &str) -> io::Result<Vec<u8>> {
    let file = disk.open(path)?;
    let mut bytes = vec![0; usize::try_from(file.len()?).unwrap_or_default()];
    file.read_at(&mut bytes, 0)?;
    Ok(bytes)
}
