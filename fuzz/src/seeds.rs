//! Writes what the targets begin with: a folder for each, below the one that is named.

mod targets;

fn main() -> std::io::Result<()> {
    let into = std::env::args_os().nth(1).map(std::path::PathBuf::from);
    let into = into.ok_or(std::io::ErrorKind::InvalidInput)?;
    for target in targets::targets::ALL {
        let folder = into.join(target.name);
        std::fs::create_dir_all(&folder)?;
        for (number, seed) in targets::seeds::seeds(target.name).into_iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{number}")), seed)?;
        }
    }
    Ok(())
}
