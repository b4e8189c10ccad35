//! One guest: a User Mode Linux process with the host's files, read-only, and a network of its own.
//!
//! Its network cards are pairs of UDP ports on the loopback address, so that nothing leaves this
//! machine. Its console is a pair of pipes: a line in is a command, and what it prints comes back.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::UdpSocket;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::context::{Context, Trouble};
use crate::guard::Process;

/// What the first process of a guest runs.
const INIT: &str = include_str!("init.sh");

/// A running guest.
pub(super) struct Guest {
    pub(super) name: &'static str,
    process: Process,
    input: ChildStdin,
    output: Receiver<String>,
}

/// Both ends of a cable.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cable(u16, u16);

impl Cable {
    /// Between two ports that are free at this moment.
    pub(super) fn new() -> Result<Self, Trouble> {
        let sockets = [UdpSocket::bind(("127.0.0.1", 0))?, UdpSocket::bind(("127.0.0.1", 0))?];
        Ok(Self(sockets[0].local_addr()?.port(), sockets[1].local_addr()?.port()))
    }

    /// The same, from the other end.
    pub(super) fn turned(self) -> Self {
        Self(self.1, self.0)
    }

    fn word(self, number: usize) -> String {
        format!(
            "vec{number}:transport=l2tpv3,udp=1,src=127.0.0.1,dst=127.0.0.1,srcport={},dstport={},\
             rx_session=1,tx_session=1",
            self.0, self.1
        )
    }
}

impl Guest {
    /// Starts one; it is not ready yet.
    pub(super) fn start(
        context: &Context,
        tools: &Path,
        name: &'static str,
        cables: &[Cable],
        disk: Option<&Path>,
    ) -> Result<Self, Trouble> {
        let init = context.scratch.path().join("init.sh");
        if !init.exists() {
            std::fs::write(&init, INIT)?;
            std::fs::set_permissions(&init, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        }
        // The kernel takes 512 bytes of arguments, and says nothing if there are more.
        let short = context.scratch.path().join("t");
        if !short.exists() {
            std::os::unix::fs::symlink(tools, &short)?;
        }
        // The program brings a C library of its own; the host's files are below it.
        let script = "mount --rbind / \"$0/host\" && mount --rbind /proc \"$0/proc\" && \
                      mount --rbind /dev \"$0/dev\" && exec chroot \"$0\" /usr/bin/linux.uml \"$@\"";
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "unshare", "--mount", "sh", "-c", script]).arg(tools);
        command.args(["mem=128M", "quiet", "loglevel=1", "rootfstype=hostfs", "rootflags=/host"]);
        command.args(["ro", "con=null", "con0=fd:0,fd:1"]);
        command.arg(format!("init={}", init.display()));
        command.arg(format!("tools={}", short.display())).arg(format!("name={name}"));
        command.arg(format!("umid={name}-{}", std::process::id()));
        for (number, cable) in cables.iter().enumerate() {
            command.arg(cable.word(number));
        }
        if let Some(disk) = disk {
            command.arg(format!("ubda=/host{}", disk.display()));
        }
        command.env_clear().env("HOME", "/tmp").env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        command.process_group(0);
        let mut process = Process::start(&mut command)?;
        let missing = || Trouble::Failed("a pipe is missing".to_owned());
        let input = process.child.stdin.take().ok_or_else(missing)?;
        let stdout = process.child.stdout.take().ok_or_else(missing)?;
        let (lines, output) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let Ok(line) = line else { return };
                if lines.send(line.trim_end_matches('\r').to_owned()).is_err() {
                    return;
                }
            }
        });
        Ok(Self { name, process, input, output })
    }

    /// Waits until it takes commands.
    pub(super) fn ready(&self) -> Result<(), Trouble> {
        self.listen("ready", Duration::from_mins(1)).map(|_| ())
    }

    /// Lets it begin a command.
    pub(super) fn begin(&mut self, command: &str) -> Result<(), Trouble> {
        self.input.write_all(format!("{command}\n").as_bytes())?;
        Ok(self.input.flush()?)
    }

    /// Waits for the end of the command that was begun: its exit code, and what it printed.
    pub(super) fn end(&self, patience: Duration) -> Result<(i32, String), Trouble> {
        let (word, said) = self.listen("", patience)?;
        let code =
            word.parse().map_err(|_| Trouble::Failed(format!("{} said {word}", self.name)))?;
        Ok((code, said))
    }

    /// Both.
    pub(super) fn run(&mut self, command: &str) -> Result<(i32, String), Trouble> {
        self.begin(command)?;
        self.end(Duration::from_secs(90))
    }

    /// A command that cannot fail unless something is broken.
    pub(super) fn must(&mut self, command: &str) -> Result<String, Trouble> {
        match self.run(command)? {
            (0, said) => Ok(said),
            (code, said) => Err(Trouble::Failed(format!(
                "{}: `{command}` ended with {code}: {}",
                self.name,
                said.trim()
            ))),
        }
    }

    /// The line `::WORD`, and the lines before it.
    fn listen(&self, start: &str, patience: Duration) -> Result<(String, String), Trouble> {
        let deadline = Instant::now() + patience;
        let mut said = String::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(left) {
                Ok(line) => match line.strip_prefix("::") {
                    Some(word) if word.starts_with(start) => return Ok((word.to_owned(), said)),
                    _ => {
                        said.push_str(&line);
                        said.push('\n');
                    }
                },
                Err(RecvTimeoutError::Timeout) => {
                    return Err(Trouble::Failed(format!("{} is silent after: {said}", self.name)));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Trouble::Failed(format!("{} ended: {said}", self.name)));
                }
            }
        }
    }

    /// Cuts its power: nothing that it has in memory is written any more.
    pub(super) fn cut(mut self) {
        self.kill();
    }

    fn kill(&mut self) {
        let group = i32::try_from(self.process.child.id()).ok();
        if let Some(group) = group.and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        self.process.kill();
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.kill();
    }
}
