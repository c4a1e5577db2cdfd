//! The interposing library: the tree through every call of the C library and through common tools, and the
//! names that the library exports (INV-4).

use std::process::Command;

use crate::c_program::{compile, verbs_program};
use crate::fabric::{Fabric, Layer, launcher};
use crate::program::find;

#[test]
fn every_call_of_the_c_library_sees_the_tree_and_the_device_files() {
    let program = measure::need!(compile("discovery", &[]), "C compiler");
    let fabric = Fabric::new(Layer::InfiniBand);
    fabric.start(&[&program.display().to_string()]).program.succeed();
}

/// Runs a line of shell on the NIC and returns what it prints.
fn shell(fabric: &Fabric, line: &str) -> String {
    fabric.start(&["bash", "-c", line]).program.succeed().trim_end().to_owned()
}

#[test]
fn common_tools_see_what_they_would_see_of_a_card() {
    measure::need!(find("bash"), "bash");
    let fabric = Fabric::new(Layer::Roce).with_options(&["--devices", "2"]);
    for (line, expected) in [
        ("ls /sys/class/infiniband", "mlx5_0\nmlx5_1"),
        (
            "echo /sys/class/infiniband/*/ports/*/state",
            "/sys/class/infiniband/mlx5_0/ports/1/state /sys/class/infiniband/mlx5_1/ports/1/state",
        ),
        ("cat /sys/class/infiniband/mlx5_1/ports/1/link_layer", "Ethernet"),
        ("cat < /sys/class/infiniband_verbs/uverbs1/ibdev", "mlx5_1"),
        ("cd /; cat sys/class/infiniband/mlx5_0/node_type", "1: CA"),
        ("readlink -f /sys/class/infiniband/mlx5_0/device", "/sys/devices/pci5074:00/5074:00:00.0"),
        ("stat -c '%F %t:%T' /dev/infiniband/uverbs1", "character special file 1:3"),
        ("[ -d /sys/class/infiniband/mlx5_0 ] && [ -L /sys/class/infiniband/mlx5_0 ] && echo yes", "yes"),
        ("stat -c '%F %t:%T' /dev/infiniband/rdma_cm", "character special file a:79"),
        ("ls /dev/infiniband", "rdma_cm\nuverbs0\nuverbs1"),
        ("ls -lR /sys/class/infiniband/mlx5_0/ > /dev/null && echo fine", "fine"),
        ("while read line; do echo $line; done < /sys/class/infiniband/mlx5_0/fw_ver", "20.35.1012"),
    ] {
        assert_eq!(shell(&fabric, line), expected, "{line}");
    }
}

#[test]
fn python_lists_and_reads_the_tree() {
    measure::need!(find("python3"), "python3");
    let script = "import os, glob, pathlib\n\
                  print(sorted(os.listdir('/sys/class/infiniband')))\n\
                  print([e.name for e in os.scandir('/dev/infiniband') if not e.is_dir()])\n\
                  print(os.path.realpath('/sys/class/infiniband/mlx5_0'))\n\
                  print(glob.glob('/sys/class/infiniband/*/ports/1/lid'))\n\
                  print(pathlib.Path('/sys/class/infiniband/mlx5_0/device/vendor').read_text().strip())\n\
                  print(sum(len(f) for _, _, f in os.walk('/sys/class/infiniband/mlx5_0/')) > 20)\n";
    let fabric = Fabric::new(Layer::InfiniBand);
    let output = fabric.start(&["python3", "-c", script]).program.succeed();
    assert_eq!(
        output,
        "['mlx5_0']\n['rdma_cm', 'uverbs0']\n/sys/devices/pci5074:00/5074:00:00.0/infiniband/mlx5_0\n\
         ['/sys/class/infiniband/mlx5_0/ports/1/lid']\n0x15b3\nTrue\n"
    );
}

/// Names exported: those of the C library, `ibv_open_device` for the pump, and a hook of ThreadSanitizer.
const EXPORTED: &str = "_Exit __fxstat __fxstat64 __fxstatat __fxstatat64 __lxstat __lxstat64 __open64_2 __open_2 \
    __openat64_2 __openat_2 __readlink_chk __readlinkat_chk __realpath_chk __tsan_default_suppressions \
    __xstat __xstat64 _exit access canonicalize_file_name close close_range closedir closefrom dirfd dup dup2 dup3 eaccess euidaccess faccessat fcntl \
    fcntl64 fdopendir fopen fopen64 fstat fstat64 fstatat fstatat64 getxattr ibv_open_device ioctl lgetxattr listxattr \
    llistxattr lstat lstat64 mmap mmap64 open open64 openat openat64 opendir readdir readdir64 readdir64_r readdir_r \
    readlink readlinkat realpath rewinddir scandir scandir64 seekdir socket stat stat64 statx telldir write";

#[test]
fn the_library_exports_these_names_and_nothing_else() {
    let nm = measure::need!(find("nm"), "nm (binutils)");
    let folder = launcher().parent().expect("a folder").to_owned();
    let beside = ["libsoftnic_preload.so", "deps/libsoftnic_preload.so"].map(|name| folder.join(name));
    let library = beside.iter().find(|path| path.is_file()).expect("the library beside the launcher");
    let output = Command::new(nm).args(["-D", "--defined-only"]).arg(library).output().expect("nm runs");
    let output = String::from_utf8_lossy(&output.stdout);
    let mut names: Vec<&str> = output.lines().filter_map(|line| line.split_whitespace().last()).collect();
    names.sort_unstable();
    assert_eq!(names, EXPORTED.split_whitespace().collect::<Vec<_>>());
}

#[test]
fn what_the_device_lacks_is_refused_every_time_and_said_once() {
    let program = measure::need!(verbs_program("missing"), "C compiler and libibverbs-dev");
    let fabric = Fabric::new(Layer::InfiniBand);
    let mut started = fabric.start(&[&program]);
    let output = started.program.succeed();
    for command in ["COUNTERS method 0x0 (counters of flows)", "OPEN_XRCD"] {
        let said = output.matches(&format!("not supported: {command}")).count();
        assert_eq!(said, 1, "{command} in\n{output}");
    }
}

/// librdmacm sets `errno`, cleans up by commands, and returns: those must not hide why it failed.
#[test]
fn what_succeeds_leaves_errno_as_it_was() {
    let program = measure::need!(verbs_program("errno_kept"), "C compiler and libibverbs-dev");
    Fabric::new(Layer::Roce).start(&[&program]).program.succeed();
}
