# What somebody does who is not root: mounts by way of fusermount3, uses it, unmounts it. In a mount namespace of its own, whose
# folder has what the system need not have: fusermount3 with root's rights, and a /dev/fuse for all.
#
# user.sh FERCUDA FUSERMOUNT3 DEVICE: says "ok" or "FAILED" of each step.
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
  local name=$1 said
  shift
  if said=$("$@" 2>&1); then
    echo "ok $name"
  else
    printf 'FAILED %s\n%s\n' "$name" "$said"
    failed=1
  fi
}
refused() { # WHY COMMAND...: it fails, and says so
  local why=$1 said
  shift
  said=$("$@" 2>&1) && { echo "it was done: $said"; return 1; }
  [[ $said == *"$why"* ]] || { echo "$said"; return 1; }
}
is_mounted() { grep -q " $at .* fuse.vramfs .*user_id=65534" /proc/self/mountinfo; }
is_gone() { ! is_mounted; }
mounts() { as_user fercuda vram mount "$at" --device "$1" --ecc off --size 64MiB "${@:2}"; }
fills() {
  as_user cp "$scratch/random" "$at/copy" && as_user mkdir "$at/d" && as_user ln "$at/copy" "$at/d/link" &&
    as_user mv "$at/copy" "$at/d/moved" && as_user cmp "$scratch/random" "$at/d/link" && as_user ln -s d/moved "$at/symbolic" &&
    as_user cmp "$scratch/random" "$at/symbolic" && [[ $(as_user stat -c %u:%h "$at/d/moved") == 65534:2 ]]
}
says() { [[ $(as_user fercuda vram df) == *"64.0 MiB"*"$at"* ]]; }
saves() { as_user fercuda vram save "$at" "$HOME/saved" && [[ $(stat -c %a:%u "$HOME/saved") == 600:65534 ]]; }
loads() { as_user fercuda vram load "$at" "$HOME/saved" && as_user cmp "$scratch/random" "$at/d/moved"; }

step "allow-other is root's to allow" refused user_allow_other mounts "$3" --allow-other
step "nothing is left of that" is_gone
step "mount" mounts "$3"
step "it is the user's" is_mounted
step "files, directories and links" fills
step "what he may not give away" refused "not permitted" as_user chown 0 "$at/d/moved"
step "nobody else gets in, root neither" refused "ermission denied" ls "$at"
step "df" says
step "there is no code to scrub by" refused "has no code" as_user fercuda vram scrub --now "$at"
step "grow" as_user fercuda vram grow "$at" --size 96MiB
step "save" saves
step "another is on top" refused "try:" mounts "$3"
step "umount" as_user fercuda vram umount "$at"
step "it is gone" is_gone
step "mount again" mounts "$3"
step "load" loads
step "umount again" as_user fercuda vram umount "$at"
exit "$failed"
