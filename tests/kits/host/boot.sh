#!/bin/bash
# Boots systemd as the first process of the namespaces that this runs in: boot.sh TREE PYTHON SITE_PACKAGES
#
# Nothing of the host is written: /etc, /usr, /var and /opt are overlays, /tmp, /run, /dev and the cgroups are its own,
# the rest is read-only. Headrace is in /opt/headrace, its Python in /opt/python: units see no /root and no /home.
set -e
tree=$1 python=$2 site=$3
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /mnt
mkdir -p /mnt/{tree,python,site,dev}
mount --bind "$tree" /mnt/tree
mount --bind "$python" /mnt/python
mount --bind "$site" /mnt/site
lay() { # lay LOWER ON: an overlay whose changes are gone with the namespace
  mkdir -p "/mnt/changes$2" "/mnt/work$2"
  mount -t overlay overlay -o "lowerdir=$1,upperdir=/mnt/changes$2,workdir=/mnt/work$2" "$2"
}
for folder in /etc /usr /var /opt; do lay "$folder" "$folder"; done

packages=/opt/headrace/lib/$(basename "$(ls -d /mnt/python/lib/python3.* | tail -1)")/site-packages
mkdir -p "$packages" /opt/headrace/bin /opt/python /opt/tree
mount --bind /mnt/python /opt/python
mount --bind /mnt/tree /opt/tree
mkdir -p /mnt/changes/site /mnt/work/site
mount -t overlay overlay -o "lowerdir=/mnt/site,upperdir=/mnt/changes/site,workdir=/mnt/work/site" "$packages"
rm -f "$packages"/__editable__.headrace*
echo /opt/tree/.typing > "$packages/headrace.pth"
ln -s /opt/python/bin/python3 /opt/headrace/bin/python
echo "home = /opt/python/bin" > /opt/headrace/pyvenv.cfg
cat > /opt/headrace/bin/headrace <<'END'
#!/opt/headrace/bin/python
import sys

from headrace.cli.__main__ import main

sys.exit(main())
END
chmod 755 /opt/headrace/bin/headrace
echo /opt/python/lib > /etc/ld.so.conf.d/00-python.conf
ldconfig

# No service of this host is started.
mount -t tmpfs -o mode=755 tmpfs /etc/systemd/system
: > /etc/fstab
for unit in systemd-sysctl systemd-modules-load; do ln -s /dev/null "/etc/systemd/system/$unit.service"; done
mount -t proc proc /proc
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=755 tmpfs /run
mount -t sysfs -o ro sysfs /sys
if [ -n "$CGROUP2" ]; then
  mount -t cgroup2 cgroup2 /sys/fs/cgroup
else
  mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
  mkdir /sys/fs/cgroup/{memory,pids,systemd}
  for kind in memory pids; do mount -t cgroup -o "$kind" cgroup "/sys/fs/cgroup/$kind"; done
  mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
fi
mount -t tmpfs -o mode=755 tmpfs /mnt/dev
for node in null zero full random urandom tty; do cp -a "/dev/$node" /mnt/dev/; done
mkdir /mnt/dev/{pts,shm}
ln -s /proc/self/fd /mnt/dev/fd
ln -s pts/ptmx /mnt/dev/ptmx
mount -t devpts -o newinstance,ptmxmode=666 devpts /mnt/dev/pts
mount -t tmpfs -o mode=1777 tmpfs /mnt/dev/shm
mount --rbind /mnt/dev /dev
mount -o remount,bind,ro /
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --unit=multi-user.target
