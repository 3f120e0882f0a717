# Session of an unprivileged user: mounts through fusermount3, uses the files, unmounts. It runs in
# its own mount namespace, with a private folder that has a set-user-ID fusermount3, and with a
# /dev/fuse that every user may open; the system needs neither.
#
# user.sh FERCUDA FUSERMOUNT3 DEVICE: prints "ok" or "FAILED" for each step.
set -u
scratch=$(mktemp -d)
mount -t tmpfs -o mode=0755 none "$scratch" || exit
at=$scratch/at failed=0
trap 'umount -l "$at" 2> /dev/null; umount -l /dev/fuse "$scratch"; rmdir "$scratch"' EXIT
cp "$1" "$scratch/fercuda" && cp "$2" "$scratch/fusermount3" && chmod 4755 "$scratch/fusermount3" || exit
mknod -m 666 "$scratch/fuse" c 10 229 && mount --bind "$scratch/fuse" /dev/fuse || exit
mkdir "$at" "$scratch/home" && chown 65534:65534 "$at" "$scratch/home" || exit
export PATH="$scratch:$PATH" HOME="$scratch/home" FERCUDA_SOFT_CHECK=0
head -c 3000000 /dev/urandom > "$scratch/random"

as_user() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }
step() { # NAME COMMAND...
  local name=$1 output
  shift
  if output=$("$@" 2>&1); then
    echo "ok $name"
  else
    printf 'FAILED %s\n%s\n' "$name" "$output"
    failed=1
  fi
}
expect_failure() { # WHY COMMAND...: fails unless the command fails with that message
  local why=$1 output
  shift
  output=$("$@" 2>&1) && { echo "unexpected success: $output"; return 1; }
  [[ $output == *"$why"* ]] || { echo "$output"; return 1; }
}
is_mounted() { grep -q " $at .* fuse.vramfs .*user_id=65534" /proc/self/mountinfo; }
is_gone() { ! is_mounted; }
mounts() { as_user fercuda vram mount "$at" --device "$1" --ecc off --size 64MiB "${@:2}"; }
fills() {
  as_user cp "$scratch/random" "$at/copy" && as_user mkdir "$at/d" && as_user ln "$at/copy" "$at/d/link" &&
    as_user mv "$at/copy" "$at/d/moved" && as_user cmp "$scratch/random" "$at/d/link" && as_user ln -s d/moved "$at/symbolic" &&
    as_user cmp "$scratch/random" "$at/symbolic" && [[ $(as_user stat -c %u:%h "$at/d/moved") == 65534:2 ]]
}
lists_mount() { [[ $(as_user fercuda vram df) == *"64.0 MiB"*"$at"* ]]; }
saves() { as_user fercuda vram save "$at" "$HOME/saved" && [[ $(stat -c %a:%u "$HOME/saved") == 600:65534 ]]; }
loads() { as_user fercuda vram load "$at" "$HOME/saved" && as_user cmp "$scratch/random" "$at/d/moved"; }

step "allow-other needs user_allow_other" expect_failure user_allow_other mounts "$3" --allow-other
step "the refused mount left nothing" is_gone
step "mount" mounts "$3"
step "the user owns the mount" is_mounted
step "files, directories and links" fills
step "chown to root is refused" expect_failure "not permitted" as_user chown 0 "$at/d/moved"
step "other users have no access, root included" expect_failure "ermission denied" ls "$at"
step "df" lists_mount
step "scrub is refused without ECC" expect_failure "has no error-correcting code" as_user fercuda vram scrub --now "$at"
step "grow" as_user fercuda vram grow "$at" --size 96MiB
step "save" saves
step "a second mount is refused" expect_failure "try:" mounts "$3"
step "umount" as_user fercuda vram umount "$at"
step "the mount is gone" is_gone
step "mount again" mounts "$3"
step "load" loads
step "umount again" as_user fercuda vram umount "$at"
exit "$failed"
