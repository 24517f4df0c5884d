"""What a stack looks like on other machines: nginx, compose, Kubernetes, systemd, Prometheus, Grafana."""
