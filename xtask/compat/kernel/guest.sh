# guest.sh FOLDER: Debian's kernel and an initramfs of this machine's own programs, for `cargo xtask compat --kernel`.
# The kernel is unpacked in the folder, and never installed. `release` there is made last.
here=$(dirname "$(readlink -f "$0")")
cd "$1"
PATH=$PATH:/usr/sbin:/sbin
package=$(apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: *\(linux-image-[0-9].*\)/\1/p')
[ -n "$package" ] || { echo "no package linux-image-amd64 here: the guest needs Debian's kernel" >&2; exit 1; }
release=${package#linux-image-}
# It may have been built from older programs: what is slow is the kernel alone.
if [ ! -e "unpacked-$release" ]; then
    rm -rf unpacked-* kernel ./*.deb release
    apt-get download -q "$package"
    dpkg -x "$package"_*.deb kernel
    depmod -b kernel "$release"
    rm ./*.deb
    : > "unpacked-$release"
fi
rm -rf root release
libraries=root/usr/lib/x86_64-linux-gnu
mkdir -p root/bin root/usr/bin root/proc root/sys root/dev root/tmp root/host root/root root/run root/etc/libibverbs.d \
    $libraries/libibverbs root/lib64 "root/lib/modules/$release"
ln -s ../usr/lib/x86_64-linux-gnu root/lib/x86_64-linux-gnu
cp /bin/busybox root/bin/
for applet in sh mount mkdir modprobe poweroff usleep sleep mv cat grep kill echo timeout true; do ln -s busybox root/bin/$applet; done
with_libraries() {
    cp -L "$1" "root$2"
    ldd "$1" | grep -o '/[^ ]*' | while read -r library; do
        case $library in
            /lib64/*) cp -L "$library" root/lib64/ ;;
            *) cp -L "$library" $libraries/ ;;
        esac
    done
}
for program in ip tc rdma ibv_devinfo ibv_rc_pingpong ibv_uc_pingpong ibv_ud_pingpong ib_write_bw ib_read_bw ib_send_bw ib_atomic_bw rping; do
    with_libraries "$(command -v $program)" /usr/bin/
done
provider=/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so
with_libraries $provider $provider
cp /etc/libibverbs.d/rxe.driver root/etc/libibverbs.d/
# Loaded when a thread ends, which no list of libraries says.
cp -L /lib/x86_64-linux-gnu/libgcc_s.so.1 $libraries/
echo 'root:x:0:0:root:/root:/bin/sh' > root/etc/passwd
echo '127.0.0.1 localhost' > root/etc/hosts
modules=kernel/lib/modules/$release
cp $modules/modules.builtin $modules/modules.builtin.modinfo $modules/modules.order "root/lib/modules/$release/"
for module in virtio_pci virtio_rng virtio_net rdma_rxe ib_uverbs rdma_ucm 9p 9pnet_virtio crc32_generic crc32-pclmul sch_netem; do
    modprobe -d "$PWD/kernel" -S "$release" --show-depends $module | sed -n "s|^insmod $PWD/kernel/\([^ ]*\).*|\1|p"
done | sort -u | while read -r file; do
    mkdir -p "root/$(dirname "$file")"
    cp "kernel/$file" "root/$file"
done
depmod -b root "$release"
cp "$here/init" root/init
chmod 755 root/init
(cd root && find . | cpio -o -H newc --quiet | gzip -1) > initrd.gz
cp "kernel/boot/vmlinuz-$release" vmlinuz
rm -rf root
echo "$release" > release
