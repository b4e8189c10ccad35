//! Two clients and a server: three kernels, one NFSv4.2 export.

use std::path::{Path, PathBuf};

use super::guest::{Cable, Guest};
use crate::context::{Context, Trouble, command};

/// Where clients see the export.
pub(super) const MOUNT: &str = "/mnt/shared";
/// Where the server has it.
pub(super) const EXPORT: &str = "/mnt/export";
/// Seconds that the server waits for a client that is silent, and after its own start.
pub(super) const GRACE: u64 = 10;

/// The three guests.
pub(super) struct Lab {
    context: Context,
    tools: PathBuf,
    disk: PathBuf,
    cables: [Cable; 2],
    /// Absent while its power is off.
    server: Option<Guest>,
    /// The clients.
    pub(super) clients: Vec<Guest>,
}

impl Lab {
    /// Starts all of it.
    pub(super) fn new(context: &Context, tools: &Path) -> Result<Self, Trouble> {
        let disk = context.dir("hosts")?.join("disk.img");
        std::fs::File::create(&disk)?.set_len(64 << 20)?;
        command("mkfs.ext4", &["-q", "-F", &disk.to_string_lossy()])?;
        let mut lab = Self {
            context: context.clone(),
            tools: tools.to_owned(),
            disk,
            cables: [Cable::new()?, Cable::new()?],
            server: None,
            clients: Vec::new(),
        };
        lab.start_server(true)?;
        for number in 0..lab.cables.len() {
            let client = lab.client(number)?;
            lab.clients.push(client);
        }
        Ok(lab)
    }

    /// The server.
    pub(super) fn server(&mut self) -> Result<&mut Guest, Trouble> {
        self.server.as_mut().ok_or_else(|| Trouble::Failed("the server is off".to_owned()))
    }

    /// Starts the server on the disk as it is. A new one has nobody to wait for.
    pub(super) fn start_server(&mut self, is_new: bool) -> Result<(), Trouble> {
        let mut server =
            Guest::start(&self.context, &self.tools, "server", &self.cables, Some(&self.disk))?;
        server.ready()?;
        for card in 0..self.cables.len() {
            server.must(&format!(
                "$B ip addr add 10.77.{card}.1/24 dev vec{card} && $B ip link set vec{card} up"
            ))?;
        }
        server.must("load nfsd; mount -t nfsd nfsd /proc/fs/nfsd")?;
        server.must(&format!("mkdir {EXPORT} && mount -t ext4 /dev/ubda {EXPORT}"))?;
        server.must(&format!(
            "cd /proc/fs/nfsd && echo {GRACE} > nfsv4leasetime && echo {GRACE} > nfsv4gracetime && \
             echo '-3 +4 +4.1 +4.2' > versions; cd /"
        ))?;
        // What the export daemon would answer; without end, so that nobody needs to be asked.
        let never = "2000000000";
        for card in 0..self.cables.len() {
            server.must(&format!(
                "echo 'nfsd 10.77.{card}.2 {never} *' > /proc/net/rpc/auth.unix.ip/channel"
            ))?;
        }
        // Any port, synchronous, root is root, no subtree check, the export's number.
        let flags = 0x2 | 0x400 | 0x2000;
        server.must(&format!(
            "echo '* {EXPORT} {never} {flags} 65534 65534 0' > /proc/net/rpc/nfsd.export/channel"
        ))?;
        server.must(&format!(
            "$B printf '* 1 \\\\x00000000 {never} {EXPORT}\\n' > /proc/net/rpc/nfsd.fh/channel"
        ))?;
        server.must("echo 'tcp 2049' > /proc/fs/nfsd/portlist; echo 4 > /proc/fs/nfsd/threads")?;
        if is_new {
            // It is refused where no client is known that could come back.
            server.run("echo Y > /proc/fs/nfsd/v4_end_grace")?;
        }
        self.server = Some(server);
        Ok(())
    }

    /// Cuts the server's power.
    pub(super) fn cut_server(&mut self) {
        if let Some(server) = self.server.take() {
            server.cut();
        }
    }

    /// Starts a client and mounts the export with default options.
    fn client(&self, number: usize) -> Result<Guest, Trouble> {
        let name = ["one", "two"][number];
        let cable = self.cables[number].turned();
        let mut client = Guest::start(&self.context, &self.tools, name, &[cable], None)?;
        client.ready()?;
        client.must(&format!(
            "$B ip addr add 10.77.{number}.2/24 dev vec0 && $B ip link set vec0 up && load nfsv4"
        ))?;
        client.must(&format!(
            "mkdir {MOUNT} && $B mount -t nfs4 -o \
             vers=4.2,proto=tcp,hard,addr=10.77.{number}.1,clientaddr=10.77.{number}.2 \
             10.77.{number}.1:/ {MOUNT}"
        ))?;
        Ok(client)
    }

    /// Cuts a client's power and starts another one in its place.
    pub(super) fn cut_client(&mut self, number: usize) {
        self.clients.remove(number).cut();
    }
}
