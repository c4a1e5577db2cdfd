/* Checks from inside every way of the C library to look at the virtual tree, and to duplicate and close
 * descriptors of a device file. Prints nothing and returns 0 when all is as on a machine with a card. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #what, errno); exit(1); } } while (0)
#define FAILS(call, error) do { errno = 0; CHECK((call) == -1); CHECK(errno == (error)); } while (0)

static const char *const CLASS = "/sys/class/infiniband";
static const char *const DEVICE = "/sys/class/infiniband/mlx5_0";
static const char *const RESOLVED = "/sys/devices/pci5074:00/5074:00:00.0/infiniband/mlx5_0";

static int starts_with_m(const struct dirent *entry) { return entry->d_name[0] == 'm'; }

static void files(void)
{
	char text[64] = "";
	int fd = open("/sys/class/infiniband/mlx5_0/node_type", O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0);
	CHECK(read(fd, text, sizeof text) == 6 && !strcmp(text, "1: CA\n"));
	CHECK(lseek(fd, 0, SEEK_SET) == 0 && pread(fd, text, 1, 3) == 1 && text[0] == 'C');
	CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC);
	CHECK(close(fd) == 0);
	FILE *file = fopen("/sys/class/infiniband/mlx5_0/ports/1/state", "re");
	CHECK(file && fgets(text, sizeof text, file) && !strcmp(text, "4: ACTIVE\n"));
	CHECK(fclose(file) == 0);
	CHECK(!fopen("/sys/class/infiniband/mlx5_0/node_type", "w") && errno == EACCES);
	FAILS(open("/sys/class/infiniband/mlx5_0/node_type", O_RDWR), EACCES);
	FAILS(open("/sys/class/infiniband/mlx5_0/node_type", O_RDONLY | O_DIRECTORY), ENOTDIR);
	FAILS(open("/sys/class/infiniband/mlx5_0/node_type/x", O_RDONLY), ENOTDIR);
	FAILS(open("/sys/class/infiniband/mlx5_7", O_RDONLY), ENOENT);
	FAILS(open("/sys/class/infiniband_mad/abi_version", O_RDONLY), ENOENT);
	FAILS(open("/dev/infiniband/issm0", O_RDWR), ENOENT);
	FAILS(open(CLASS, O_RDWR), EISDIR);
	FAILS(open(DEVICE, O_RDONLY | O_NOFOLLOW), ELOOP);
	CHECK(access(DEVICE, R_OK | X_OK) == 0);
	FAILS(access("/sys/class/infiniband/mlx5_0/node_type", W_OK), EACCES);
	CHECK(faccessat(AT_FDCWD, "/dev/infiniband/uverbs0", R_OK | W_OK, AT_EACCESS) == 0);
	CHECK(euidaccess(CLASS, F_OK) == 0);
}

static void attributes(void)
{
	struct stat info, again;
	CHECK(stat(DEVICE, &info) == 0 && S_ISDIR(info.st_mode));
	CHECK(lstat(DEVICE, &info) == 0 && S_ISLNK(info.st_mode));
	CHECK(stat("/dev/infiniband/uverbs0", &info) == 0 && S_ISCHR(info.st_mode));
	CHECK(info.st_rdev == makedev(1, 3));
	struct statx extended;
	CHECK(statx(AT_FDCWD, "/dev/infiniband/uverbs0", 0, STATX_BASIC_STATS, &extended) == 0);
	CHECK(S_ISCHR(extended.stx_mode) && extended.stx_rdev_major == 1 && extended.stx_rdev_minor == 3);
	CHECK(extended.stx_ino == info.st_ino);
	int fd = open(DEVICE, O_RDONLY | O_DIRECTORY);
	CHECK(fd >= 0);
	CHECK(fstat(fd, &info) == 0 && S_ISDIR(info.st_mode));
	CHECK(stat(RESOLVED, &again) == 0 && again.st_ino == info.st_ino);
	CHECK(fstatat(fd, "device/numa_node", &info, 0) == 0 && S_ISREG(info.st_mode));
	CHECK(fstatat(fd, "", &info, AT_EMPTY_PATH) == 0 && info.st_ino == again.st_ino);
	FAILS(fstatat(fd, "nothing", &info, 0), ENOENT);
	int node = openat(fd, "../../device", O_RDONLY);
	char text[16] = "";
	CHECK(node >= 0 && read(node, text, sizeof text) == 7 && !strcmp(text, "0x101b\n"));
	CHECK(close(node) == 0 && close(fd) == 0);
	/* The number is free again, and no longer ours. */
	int other = open("/", O_RDONLY | O_DIRECTORY);
	CHECK(other == node || other == fd);
	CHECK(fstatat(other, "sys", &info, 0) == 0);
	CHECK(fstatat(other, "sys/class/infiniband/mlx5_0/node_type", &info, 0) == 0 && S_ISREG(info.st_mode));
	CHECK(close(other) == 0);
	CHECK(chdir("/sys/class") == 0 && stat("infiniband/mlx5_0", &info) == 0 && chdir("/") == 0);
}

static void links(void)
{
	char path[PATH_MAX], *made;
	ssize_t length = readlink(DEVICE, path, sizeof path);
	CHECK(length > 0 && !strncmp(path, "../../devices/pci5074:00/5074:00:00.0/infiniband/mlx5_0", length));
	FAILS(readlink(RESOLVED, path, sizeof path), EINVAL);
	CHECK(readlink(DEVICE, path, 5) == 5 && !strncmp(path, "../..", 5));
	CHECK(realpath(DEVICE, path) == path && !strcmp(path, RESOLVED));
	CHECK((made = realpath("/sys/class/infiniband/mlx5_0/device", NULL)));
	CHECK(!strcmp(made, "/sys/devices/pci5074:00/5074:00:00.0"));
	free(made);
	/* Through the tree and out of it again. */
	struct stat info;
	CHECK(stat("/sys/class/infiniband/../../../proc/self", &info) == 0 && S_ISDIR(info.st_mode));
	CHECK(realpath("/usr/bin/env", path) && realpath("/nonexistent", path) == NULL && errno == ENOENT);
}

static void directories(void)
{
	DIR *stream = opendir(CLASS);
	CHECK(stream);
	struct dirent *entry;
	int dots = 0, devices = 0;
	for (int pass = 0; pass < 2; pass++) {
		while ((entry = readdir(stream))) {
			dots += entry->d_name[0] == '.';
			if (!strcmp(entry->d_name, "mlx5_0")) {
				devices++;
				CHECK(entry->d_type == DT_LNK);
			}
		}
		rewinddir(stream);
	}
	CHECK(dots == 4 && devices == 2);
	int fd = dirfd(stream);
	CHECK(fd >= 0 && faccessat(fd, "mlx5_0/node_guid", R_OK, 0) == 0);
	CHECK(closedir(stream) == 0);
	FAILS(fcntl(fd, F_GETFD), EBADF);
	fd = open(CLASS, O_RDONLY | O_DIRECTORY);
	CHECK((stream = fdopendir(fd)) && readdir(stream) && dirfd(stream) == fd && closedir(stream) == 0);
	CHECK(!opendir("/sys/class/infiniband/mlx5_0/node_type") && errno == ENOTDIR);
	CHECK(!opendir("/sys/class/infiniband_mad") && errno == ENOENT);
	struct dirent **list;
	CHECK(scandir(CLASS, &list, starts_with_m, alphasort) == 1 && !strcmp(list[0]->d_name, "mlx5_0"));
	free(list[0]);
	free(list);
	/* Others' directories are untouched. */
	CHECK((stream = opendir("/")) && readdir(stream) && telldir(stream) != -1 && closedir(stream) == 0);
}

/* A verbs ioctl whose header is wrong: EINVAL from a device file, ENOTTY or so from anything else. */
static int is_device(int fd)
{
	uint64_t header[3] = { 0, 0, 0 };
	errno = 0;
	return ioctl(fd, 0xc0181b01ul, header) == -1 && errno == EINVAL;
}

static void descriptors(void)
{
	struct stat info;
	int fd = open("/dev/infiniband/uverbs0", O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0 && is_device(fd));
	CHECK(fstat(fd, &info) == 0 && S_ISCHR(info.st_mode) && info.st_rdev == makedev(1, 3));
	int copies[] = { dup(fd), dup2(fd, 200), dup3(fd, 201, O_CLOEXEC), fcntl(fd, F_DUPFD, 202), fcntl(fd, F_DUPFD_CLOEXEC, 203) };
	CHECK(close(fd) == 0);
	for (int i = 0; i < 5; i++)
		CHECK(copies[i] >= 0 && is_device(copies[i]));
	int null = open("/dev/null", O_RDWR);
	CHECK(null == fd && !is_device(null));
	/* Replaced by something else: no longer a device. */
	CHECK(dup2(null, copies[1]) == copies[1] && !is_device(copies[1]));
	CHECK(is_device(copies[0]) && close(copies[0]) == 0 && !is_device(copies[0]));
	CHECK(close_range(201, 203, 0) == 0);
	for (int i = 2; i < 5; i++)
		FAILS(fcntl(copies[i], F_GETFD), EBADF);
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, null, 0) == MAP_FAILED && errno == ENODEV);
	CHECK(close(null) == 0 && close(copies[1]) == 0);
	/* Before a context nothing can be mapped. */
	CHECK((fd = open("/dev/infiniband/uverbs0", O_RDWR)) >= 0);
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0x500000) == MAP_FAILED && errno == EINVAL);
	/* A vfork child closes its own descriptor only. */
	pid_t child = vfork();
	if (child == 0) {
		close(fd);
		_exit(0);
	}
	CHECK(child > 0 && waitpid(child, NULL, 0) == child && is_device(fd));
	/* A fork child gets errors on what it inherits. */
	if ((child = fork()) == 0) {
		uint64_t header[3] = { 0, 0, 0 };
		int bad = ioctl(fd, 0xc0181b01ul, header) != -1 || errno != EIO;
		int own = open("/dev/infiniband/uverbs0", O_RDWR);
		_exit(bad || own < 0 || !is_device(own));
	}
	int status = -1;
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0 && is_device(fd));
	CHECK(close(fd) == 0);
	FAILS(socket(AF_NETLINK, SOCK_RAW, 20), EPROTONOSUPPORT);
	CHECK((fd = socket(AF_UNIX, SOCK_STREAM, 0)) >= 0 && close(fd) == 0);
}

int main(void)
{
	files();
	attributes();
	links();
	directories();
	descriptors();
	return 0;
}
