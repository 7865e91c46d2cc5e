"""Train torchvision's ResNet-18 on CIFAR-10 or on random images, and print the accuracy.

Imports nothing of tuner.
"""

import argparse

import torch
from torch.utils.data import DataLoader, Subset
from torchvision import datasets, models, transforms

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument(
    "--data", default="fake", help="`fake`, or the folder of CIFAR-10's cifar-10-batches-py"
)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--images", type=int, default=64, help="to train on; a quarter as many test it")
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--batch", type=int, default=16)
args = parser.parse_args()

normalize = [transforms.ToTensor(), transforms.Normalize((0.49, 0.48, 0.45), (0.25, 0.24, 0.26))]
augmented = transforms.Compose(
    [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip(), *normalize]
)
plain = transforms.Compose(normalize)
if args.data == "fake":
    train = datasets.FakeData(args.images, (3, 32, 32), 10, augmented)
    test = datasets.FakeData(args.images // 4, (3, 32, 32), 10, plain, random_offset=args.images)
else:
    train = Subset(datasets.CIFAR10(args.data, train=True, transform=augmented), range(args.images))
    test = Subset(
        datasets.CIFAR10(args.data, train=False, transform=plain), range(args.images // 4)
    )

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = models.resnet18(num_classes=10).to(device)
optimizer = torch.optim.SGD(model.parameters(), args.lr, args.momentum, weight_decay=5e-4)
for epoch in range(args.epochs):
    model.train()
    for images, labels in DataLoader(train, args.batch, shuffle=True):
        loss = torch.nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    right = 0
    with torch.no_grad():
        for images, labels in DataLoader(test, 256):
            right += (model(images.to(device)).argmax(1).cpu() == labels).sum().item()
    print(f"epoch={epoch} accuracy={right / len(test):.4f} loss={loss.item():.4f}", flush=True)
