#!/usr/bin/env bash
# A real Slurm on one machine, for tests: two nodes with one virtual GPU each, on loopback, in seconds.
#
#   FAKE_SLURM_DIR=/tmp/x cluster.sh up          (ACCOUNTING=1: slurmdbd and MariaDB too)
#   FAKE_SLURM_DIR=/tmp/x cluster.sh down        stops only what `up` started, by its process id
#   FAKE_SLURM_DIR=/tmp/x cluster.sh controller  ends slurmctld and starts it again
#
# Root on Debian. /etc/slurm holds the configuration, because a job step of the Snakemake plugin
# forgets SLURM_CONF; a configuration that is not ours is never touched.
set -euo pipefail
S=${FAKE_SLURM_DIR:?a private folder}
MARK='# kvstudy test cluster'
HOST=$(hostname)
UP_S=${UP_S:-60}

await() { # await SECONDS COMMAND...: until the command succeeds
  local deadline=$((SECONDS + $1)); shift
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$deadline" ] || { echo "not within time: $*" >&2; return 1; }
    sleep .1
  done
}
idle_nodes() { [ "$(sinfo -h -N -p gpu -o %T | grep -cw idle)" = 2 ]; }
answers() { scontrol ping | grep -q UP; }

write_config() {
  local account=$1 proctrack=proctrack/linuxproc task=task/none
  if [ -d /sys/fs/cgroup/freezer ] && [ -d /sys/fs/cgroup/memory ]; then # cgroup v1
    proctrack=proctrack/cgroup task=task/cgroup
    printf '%s\n' "$MARK" CgroupPlugin=cgroup/v1 CgroupMountpoint=/sys/fs/cgroup ConstrainCores=no \
      ConstrainRAMSpace=yes ConstrainDevices=no >/etc/slurm/cgroup.conf
  fi
  # A distinct character device per node stands for its GPU.
  printf '%s\n' "$MARK" 'NodeName=n1 Name=gpu Type=h200 File=/dev/null' \
    'NodeName=n2 Name=gpu Type=h200 File=/dev/zero' >/etc/slurm/gres.conf
  # cred_expire: a requeued job starts again after 5 s instead of 121 s.
  # config_overrides: more CPUs and memory than there are, so that small jobs run side by side.
  cat >/etc/slurm/slurm.conf <<END
$MARK
ClusterName=kvstudytest
SlurmctldHost=$HOST(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation=$S/state
SlurmdSpoolDir=$S/spool.%n
SlurmctldPidFile=$S/slurmctld.pid
SlurmdPidFile=$S/slurmd.%n.pid
SlurmctldLogFile=$S/log/slurmctld.log
SlurmdLogFile=$S/log/slurmd.%n.log
ProctrackType=$proctrack
TaskPlugin=$task
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=2
GresTypes=gpu
MailProg=/bin/true
MpiDefault=none
ReturnToService=2
SlurmdTimeout=20
KillWait=5
MinJobAge=600
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
$account
NodeName=n1 NodeHostname=$HOST NodeAddr=127.0.0.1 Port=17001 CPUs=64 CoresPerSocket=64 RealMemory=200000 Gres=gpu:h200:1
NodeName=n2 NodeHostname=$HOST NodeAddr=127.0.0.1 Port=17002 CPUs=64 CoresPerSocket=64 RealMemory=200000 Gres=gpu:h200:1
PartitionName=gpu Nodes=n1,n2 Default=YES MaxTime=600 DefaultTime=5 DefMemPerCPU=100 PriorityTier=10 PreemptMode=off
PartitionName=low Nodes=n1,n2 MaxTime=600 DefaultTime=5 DefMemPerCPU=100 PriorityTier=1 PreemptMode=requeue
PartitionName=cpu Nodes=n1,n2 MaxTime=600 DefaultTime=5 DefMemPerCPU=100 PriorityTier=10 PreemptMode=off
END
}

start_accounting() {
  command -v slurmdbd mariadbd >/dev/null || { echo 'packages slurmdbd and mariadb-server are missing' >&2; exit 3; }
  install -d -o mysql -g mysql "$S/mysql"
  mariadb-install-db --no-defaults --user=mysql --datadir="$S/mysql" \
    --auth-root-authentication-method=normal --skip-test-db >"$S/log/mysql-install.log" 2>&1
  # A session of its own: the daemon must outlive this shell.
  setsid runuser -u mysql -- /usr/sbin/mariadbd --no-defaults --datadir="$S/mysql" --socket="$S/mysql/sock" \
    --pid-file="$S/mysql/pid" --bind-address=127.0.0.1 --port=13306 --innodb-buffer-pool-size=128M \
    --innodb-lock-wait-timeout=900 --log-error="$S/mysql/err.log" </dev/null >/dev/null 2>&1 &
  await "$UP_S" mariadb -uroot -S "$S/mysql/sock" -e 'select 1'
  mariadb -uroot -S "$S/mysql/sock" -e "create database slurm_acct_db;
    create user slurm@'127.0.0.1' identified by 'slurm'; create user slurm@localhost identified by 'slurm';
    grant all on slurm_acct_db.* to slurm@'127.0.0.1'; grant all on slurm_acct_db.* to slurm@localhost;"
  install -m 600 /dev/stdin /etc/slurm/slurmdbd.conf <<END
$MARK
AuthType=auth/munge
DbdHost=localhost
DbdAddr=127.0.0.1
SlurmUser=root
PidFile=$S/slurmdbd.pid
LogFile=$S/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=13306
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
END
  slurmdbd
  await "$UP_S" sacctmgr -n show cluster
  sacctmgr -i add cluster kvstudytest >/dev/null 2>&1 || true
  sacctmgr -i add account bench cluster=kvstudytest >/dev/null
  sacctmgr -i add user root account=bench >/dev/null
}

up() {
  local account='AccountingStorageType=accounting_storage/none'
  if [ -e /etc/slurm/slurm.conf ] && ! grep -q "^$MARK" /etc/slurm/slurm.conf; then
    echo '/etc/slurm/slurm.conf belongs to a real cluster; use KVSTUDY_SLURM_PROFILE' >&2; exit 3
  fi
  mkdir -p "$S"/{state,spool.n1,spool.n2,log} /etc/slurm && chmod 755 "$S"
  [ "${ACCOUNTING:-0}" = 0 ] || account='AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStorageTRES=gres/gpu,gres/gpu:h200
AccountingStoreFlags=job_comment'
  write_config "$account"
  install -d -o munge -g munge -m 755 /run/munge
  if ! munge -n >/dev/null 2>&1; then
    runuser -u munge -- /usr/sbin/munged --pid-file=/run/munge/kvstudy.pid
    cp /run/munge/kvstudy.pid "$S/munged.pid"
  fi
  [ "${ACCOUNTING:-0}" = 0 ] || start_accounting
  slurmctld
  await "$UP_S" answers
  slurmd -N n1
  slurmd -N n2
  await "$UP_S" idle_nodes
  sinfo -N -p gpu -o '%N %T %G'
}

stop() { # stop FILE...: end the processes of these pid files, and wait for them
  local file pid
  for file in "$@"; do
    [ -s "$file" ] || continue
    pid=$(cat "$file")
    kill "$pid" 2>/dev/null || true
    await 20 bash -c "! kill -0 $pid" || kill -9 "$pid" 2>/dev/null || true
  done
}

down() {
  [ -d "$S" ] || exit 0
  if grep -q "^$MARK" /etc/slurm/slurm.conf 2>/dev/null && answers 2>/dev/null; then
    scancel -u root 2>/dev/null || true
    await 20 bash -c '[ -z "$(squeue -h)" ]' || true
  fi
  stop "$S"/slurmd.n1.pid "$S"/slurmd.n2.pid "$S"/slurmctld.pid "$S"/slurmdbd.pid "$S"/mysql/pid "$S"/munged.pid
  local file
  for file in slurm.conf gres.conf cgroup.conf slurmdbd.conf; do
    if grep -q "^$MARK" "/etc/slurm/$file" 2>/dev/null; then rm -f "/etc/slurm/$file"; fi
  done
}

case ${1:-} in
  up) up ;;
  down) down ;;
  controller) stop "$S/slurmctld.pid"; sleep "${2:-0}"; slurmctld; await "$UP_S" answers ;;
  *) sed -n '2,8p' "$0" >&2; exit 64 ;;
esac
