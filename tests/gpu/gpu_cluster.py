"""Router, prefill and decode workers as processes on one GPU, or on one each where there are two."""
import time

from gpu_processes import Daemon, free_port, gpu_count


class Cluster:
    """`flags` go to every worker, the model last."""

    def __init__(self, baton, kv_wire, workers_per_role, flags):
        self.baton = baton
        self.kv_wire = kv_wire
        self.flags = flags
        last = gpu_count() - 1
        self.devices = {"prefill-worker": "cuda:0", "decode-worker": f"cuda:{min(1, last)}"}
        self.ports = {(role, number): free_port() for role in self.devices
                      for number in range(workers_per_role)}
        self.workers = {}
        for worker in self.ports:
            self.start(worker)
        addresses = ",".join(f"127.0.0.1:{port}" for port in self.ports.values())
        self.router = Daemon(baton, "router", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0",
                             "--workers", addresses)
        self.endpoint = self.router.ready["listen"]

    def start(self, worker):
        role, _ = worker
        self.workers[worker] = Daemon(
            self.baton, role, "--listen", f"127.0.0.1:{self.ports[worker]}", "--metrics",
            "127.0.0.1:0", "--device", self.devices[role], "--kv-wire", self.kv_wire, *self.flags)

    def await_serving(self, serves, *names, limit=20):
        """Until `serves()`, and each worker that is named has computed something."""
        def computed(name):
            return self.workers[name].metric(r"baton_kernel_launches_total\{[^}]*\}")

        before = {name: computed(name) for name in names}
        deadline = time.monotonic() + limit
        while not serves() or any(computed(name) <= before[name] for name in names):
            assert time.monotonic() < deadline, "the cluster does not serve again"

    def stop(self):
        for daemon in (self.router, *self.workers.values()):
            daemon.stop()
