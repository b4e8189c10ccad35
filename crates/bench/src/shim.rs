//! What is preloaded into the contenders: it counts their syncs, and makes them slow if asked to.
//!
//! Its C source stands in `shim.c` and is compiled here, because only the C library's own names can be
//! put in front of what every contender calls. It sees calls through the C library: not those of etcd,
//! which is static and counts by itself.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ringfence_env::{SharedWords, World};

use crate::{Result, during};

const SOURCE: &str = include_str!("shim.c");
const WORDS: usize = 8;

/// The compiled library, and how slow it makes each sync.
#[derive(Clone, Debug)]
pub(crate) struct Shim {
    library: PathBuf,
    sleep: Duration,
}

impl Shim {
    /// Compiles it into `dir`.
    pub(crate) fn build(dir: &Path, sleep: Duration) -> Result<Self> {
        let (source, library) = (dir.join("shim.c"), dir.join("shim.so"));
        std::fs::write(&source, SOURCE).map_err(during("write shim.c"))?;
        let mut compile = Command::new("cc");
        compile.args(["-O2", "-shared", "-fPIC", "-U_FILE_OFFSET_BITS", "-o"]);
        let ended = compile.arg(&library).arg(&source).arg("-ldl").output();
        let ended = ended.map_err(during("start the C compiler `cc`"))?;
        if !ended.status.success() {
            return Err(format!("shim.c: {}", String::from_utf8_lossy(&ended.stderr)).into());
        }
        Ok(Self { library, sleep })
    }

    /// Preloads it into a command whose syncs are counted in `counter`.
    pub(crate) fn preload(&self, command: &mut Command, counter: &Path) {
        command.env("LD_PRELOAD", &self.library).env("RINGFENCE_BENCH_COUNT", counter);
        if !self.sleep.is_zero() {
            command.env("RINGFENCE_BENCH_SLEEP", self.sleep.as_micros().to_string());
        }
    }
}

/// Makes a file of zeros that processes count or keep books in together, any user included.
pub(crate) fn shared_file(path: &Path, words: usize) -> Result<Box<dyn SharedWords>> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::write(path, vec![0; words * 8]).map_err(during("make shared memory"))?;
    let everybody = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(path, everybody).map_err(during("share it"))?;
    map(path, words)
}

/// Maps such a file.
pub(crate) fn map(path: &Path, words: usize) -> Result<Box<dyn SharedWords>> {
    World::system().fs.map_shared(path, words).map_err(during("map shared memory"))
}

/// The counter of one contender.
#[derive(Debug)]
pub(crate) struct Counter {
    /// The file that its processes share.
    pub(crate) path: PathBuf,
    words: Box<dyn SharedWords>,
}

impl Counter {
    /// Makes it.
    pub(crate) fn new(path: &Path) -> Result<Self> {
        Ok(Self { path: path.to_owned(), words: shared_file(path, WORDS)? })
    }

    /// Syncs so far.
    pub(crate) fn read(&self) -> u64 {
        self.words.load(0)
    }
}
