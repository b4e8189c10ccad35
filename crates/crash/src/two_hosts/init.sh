#!/bin/sh
# The first process of a guest: reads lines from the console and runs them.
export PATH=/usr/sbin:/sbin:/usr/bin:/bin
/bin/mount -t proc proc /proc
for word in $(cat /proc/cmdline); do
  case $word in tools=*|name=*) eval "$word" ;; esac
done
B=$tools/usr/bin/busybox
M=$tools/usr/lib/uml/modules/$(uname -r)
stty raw -echo < /dev/console
mount -t sysfs sys /sys
mount -t tmpfs run /run
mount -t tmpfs mnt /mnt
$B hostname "$name"
$B ip link set lo up
# Loads modules with what they need; the list has the innermost last.
load() {
  for module in "$@"; do
    line=$(grep "/$module.ko:" "$M/modules.dep")
    order=
    for needed in ${line#*:}; do order="$needed $order"; done
    for file in $order ${line%%:*}; do $B insmod "$M/$file" 2> /dev/null; done
  done
}
echo "::ready"
while read -r line; do
  eval "$line"
  echo "::$?"
done
